"""What a caller gets back. Field names follow the field's convention (vLLM's)."""

from __future__ import annotations

from dataclasses import dataclass, field

from quire.core.step import SampleError
from quire.errors import GenerationFailedError, InvalidRequestError


@dataclass(slots=True)
class Logprob:
    """One token's logprob at one position. `rank` is 1 for the most likely token."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


LogprobsAtPosition = dict[int, Logprob]


@dataclass(slots=True)
class CompletionOutput:
    """One sample. `finish_reason` is stop, length, abort or error; None while it runs. `str(error)` is a sentence."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[LogprobsAtPosition] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    error: SampleError | None = None

    def finished(self) -> bool:
        return self.finish_reason is not None


def check_sample(sample: CompletionOutput) -> None:
    """Raises GenerationFailedError if the engine gave the sample up, InvalidRequestError if the request asked for it."""
    if sample.error is not None:
        kind = InvalidRequestError if sample.error.cause == "nothing_left" else GenerationFailedError
        raise kind(sample.error.sentence)


@dataclass(slots=True)
class RequestMetrics:
    """Monotonic seconds."""

    arrival_time: float = 0.0
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    last_token_time: float | None = None
    finished_time: float | None = None
    num_preemptions: int = 0
    token_gaps: list[float] = field(default_factory=list)
    """Seconds between one output of a sample and the next, of all samples, as they came."""


@dataclass(slots=True)
class RequestOutput:
    """What a request has so far: its samples in `outputs`, one for each of `n`; with `finished` it is all there will be.

    `prompt_logprobs` has an entry for each token of the prompt, None for the first. `num_cached_tokens`: of the prompt,
    those whose KV was there already.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    prompt_logprobs: list[LogprobsAtPosition | None] | None = None
    metrics: RequestMetrics = field(default_factory=RequestMetrics)
    num_cached_tokens: int = 0


@dataclass(slots=True)
class BeamSearchSequence:
    """One hypothesis; `tokens` are the prompt and the output, `cum_logprob` is over the output."""

    tokens: list[int]
    cum_logprob: float
    text: str = ""
    finish_reason: str | None = None


@dataclass(slots=True)
class BeamSearchOutput:
    """Hypotheses, best first; none, and a sentence, where the model's logits were no numbers."""

    sequences: list[BeamSearchSequence]
    error: SampleError | None = None
