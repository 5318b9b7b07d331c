"""One continuation of one prompt, as control sees it. Counters, not phases (ADR 1)."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

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


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
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

    seq_id: int
    request_id: str
    index: int = 0
    """Which of the request's samples this is, 0 <= index < n."""
    token_ids: list[int]
    num_prompt_tokens: int
    sampling_params: SamplingParams
    max_num_tokens: int
    """Prompt and output together: the smaller of prompt + max_tokens and the context length."""
    stop_token_ids: frozenset[int] = frozenset()
    """Ids that end the sequence once min_tokens are out: EOS (unless ignored) and the request's own."""
    seed: int = 0
    priority: int = 0
    arrival_time: float = 0.0
    cache_salt: str | None = None
    tenant: str = ""
    keep_blocks: bool = False
    """Whether a finished sequence keeps its blocks until `Scheduler.release`: something may still fork it."""

    num_planned: int = field(default=0, init=False)
    num_computed: int = field(default=0, init=False)
    num_samples_in_flight: int = field(default=0, init=False)
    num_steps_in_flight: int = field(default=0, init=False)
    num_cached_tokens: int = field(default=0, init=False)
    """Prompt tokens taken from the prefix cache when first admitted."""
    num_preemptions: int = field(default=0, init=False)
    first_scheduled_time: float | None = field(default=None, init=False)
    """Monotonic seconds: when its first step was planned."""
    status: SequenceStatus = field(default=SequenceStatus.WAITING, init=False)
    finish_reason: FinishReason | None = field(default=None, init=False)
    stop_reason: int | str | None = field(default=None, init=False)
    """The stop token id or stop string that ended it; None for EOS and for length."""
    error: SampleError | None = field(default=None, init=False)

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
