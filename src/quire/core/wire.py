"""What the engine tells a client about its requests, step by step. Wire types (msgspec)."""

from __future__ import annotations

import msgspec

from quire.core.sequence import FinishReason
from quire.core.step import TokenLogprobs


class SampleDelta(msgspec.Struct):
    """What one step added to one sample of one request.

    `prompt_logprobs` comes once, complete, with the sample's first delta. Times are monotonic seconds.
    """

    request_id: str
    index: int
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    error: str | None = None
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    first_scheduled_time: float | None = None


class BeamDelta(msgspec.Struct):
    """The end of a beam search: hypotheses, best first, as (output token ids, cumulative logprob, finish reason)."""

    request_id: str
    hypotheses: list[tuple[list[int], float, FinishReason]]
    num_steps: int = 0
    error: str | None = None


Delta = SampleDelta | BeamDelta
