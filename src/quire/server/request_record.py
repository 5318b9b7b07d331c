"""What is known of a request when it ends: for metrics, traces and the log."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

Operation = Literal["chat", "text_completion", "embeddings", "score"]
"""In the words of OpenTelemetry's GenAI conventions, where they have one."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a request came from, as far as its treatment depends on it."""

    operation: Operation
    route: str
    """The route's template, such as /v1/chat/completions; never a client's path."""
    client: str
    """Whom limits count, which nobody can pretend to be: a hash of the API key, or the address where none is needed."""
    tenant: str
    """Whom fairness counts: the same, a client's word for it where no key is needed, and the user it names."""
    x_request_id: str | None
    """Of its answer: what the client sent along, bounded by whoever took it in, or what was made for it."""
    traceparent: str | None
    tracestate: str | None
    stream: bool
    arrival_time: float


@dataclass(slots=True)
class RequestRecord:
    """Times are seconds on the monotonic clock of this machine; None for what the request did not live to see.

    Never in here: prompts, outputs, API keys.
    """

    origin: Origin
    model: str
    """The served model's name; never a client's spelling."""
    finished_time: float
    request_id: str = ""
    num_prompt_tokens: int | None = None
    num_sample_tokens: Counter[int] = field(default_factory=Counter)
    """Output tokens of each sample, by its index."""
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    num_gaps: int = 0
    """How many of the gaps between its tokens were observed."""
    n: int = 1
    max_tokens: int | None = None
    status: int = 200
    finish_reason: str | None = None
    """stop, length, abort or error; None if the request was refused."""
    error: str | None = None
    """The kind of error, without its text."""
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    last_token_time: float | None = None

    @property
    def num_generation_tokens(self) -> int:
        return self.num_sample_tokens.total()

    @property
    def max_num_generation_tokens(self) -> int:
        """Of the longest sample."""
        return max(self.num_sample_tokens.values(), default=0)

    @property
    def e2e_s(self) -> float:
        return max(0.0, self.finished_time - self.origin.arrival_time)

    @property
    def queue_s(self) -> float | None:
        return _between(self.origin.arrival_time, self.first_scheduled_time)

    @property
    def ttft_s(self) -> float | None:
        return _between(self.origin.arrival_time, self.first_token_time)

    @property
    def prefill_s(self) -> float | None:
        return _between(self.first_scheduled_time, self.first_token_time)

    @property
    def decode_s(self) -> float | None:
        """From the first token to the last."""
        return _between(self.first_token_time, self.last_token_time)

    @property
    def inference_s(self) -> float | None:
        return _between(self.first_scheduled_time, self.last_token_time)

    @property
    def tpot_s(self) -> float | None:
        """Seconds an output token after the first; None if there is only one. The n samples run side by side."""
        tokens_each = self.num_generation_tokens / self.n
        if self.decode_s is None or tokens_each <= 1:
            return None
        return self.decode_s / (tokens_each - 1)


def _between(start: float | None, end: float | None) -> float | None:
    """Never negative: the ends may have been read in two processes."""
    if start is None or end is None:
        return None
    return max(0.0, end - start)
