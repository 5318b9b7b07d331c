"""One continuation of one prompt, as control sees it. Counters, not phases (ADR 1)."""

from __future__ import annotations

import enum

from quire.core.sampling_params import SamplingParams
from quire.core.step import SampleError


class SequenceStatus(enum.Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class FinishReason(enum.Enum):
    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class Sequence:
    """Known tokens and how many of them are planned and computed. Only control changes it.

    The invariant is `num_computed <= num_planned <= num_known + num_samples_in_flight`:

    - known: the prompt and every token returned by a committed step (`token_ids`);
    - planned: tokens whose KV is written by a committed step or one in flight;
    - computed: tokens whose KV is written by a committed step;
    - samples in flight: tokens that steps in flight will return. They may be planned before their value is
      known here, because the worker that samples them also holds them (ADR 2).

    A prefill chunk, a prefix hit, a preempted sequence and a draft are all "known but not computed".
    """

    __slots__ = (
        "arrival_time",
        "cache_salt",
        "error",
        "finish_reason",
        "first_scheduled_time",
        "index",
        "keep_blocks",
        "max_num_tokens",
        "num_cached_tokens",
        "num_computed",
        "num_planned",
        "num_preemptions",
        "num_prompt_tokens",
        "num_samples_in_flight",
        "num_steps_in_flight",
        "priority",
        "request_id",
        "sampling_params",
        "seed",
        "seq_id",
        "status",
        "stop_reason",
        "stop_token_ids",
        "tenant",
        "token_ids",
    )

    def __init__(
        self,
        *,
        seq_id: int,
        request_id: str,
        token_ids: list[int],
        num_prompt_tokens: int,
        sampling_params: SamplingParams,
        max_num_tokens: int,
        stop_token_ids: frozenset[int] = frozenset(),
        index: int = 0,
        seed: int = 0,
        priority: int = 0,
        arrival_time: float = 0.0,
        cache_salt: str | None = None,
        tenant: str = "",
        keep_blocks: bool = False,
    ) -> None:
        self.seq_id = seq_id
        self.request_id = request_id
        self.index = index
        """Which of the request's samples this is, 0 <= index < n."""
        self.token_ids = token_ids
        self.num_prompt_tokens = num_prompt_tokens
        self.sampling_params = sampling_params
        self.max_num_tokens = max_num_tokens
        """Prompt and output together: the smaller of prompt + max_tokens and the context length."""
        self.stop_token_ids = stop_token_ids
        """Ids that end the sequence once min_tokens are out: EOS (unless ignored) and the request's own."""
        self.seed = seed
        self.priority = priority
        self.arrival_time = arrival_time
        self.cache_salt = cache_salt
        self.tenant = tenant
        self.keep_blocks = keep_blocks
        """Whether a finished sequence keeps its blocks until `Scheduler.release`: something may still fork it."""
        self.num_planned = 0
        self.num_computed = 0
        self.num_samples_in_flight = 0
        self.num_steps_in_flight = 0
        self.num_cached_tokens = 0
        """Prompt tokens taken from the prefix cache when first admitted."""
        self.num_preemptions = 0
        self.first_scheduled_time: float | None = None
        """Monotonic seconds: when its first step was planned."""
        self.status = SequenceStatus.WAITING
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None
        """The stop token id or stop string that ended it; None for EOS and for length."""
        self.error: SampleError | None = None

    @property
    def num_known(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def finished(self) -> bool:
        return self.status is SequenceStatus.FINISHED

    def __repr__(self) -> str:
        return (
            f"Sequence({self.seq_id}, {self.request_id!r}[{self.index}], {self.status.value}, known={self.num_known},"
            f" planned={self.num_planned}, computed={self.num_computed})"
        )
