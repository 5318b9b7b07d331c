"""The messages between clients and an engine, in one process or between two. msgspec structs; nothing is ever unpickled.

On a socket a message is msgpack behind one byte, WIRE_VERSION: whatever begins otherwise is dropped unread.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from quire.core.embedding import EmbeddingDelta, EmbeddingRequest
from quire.core.engine_info import EngineInfo
from quire.core.request import Request
from quire.core.sequence import FinishReason
from quire.core.stats import EngineStats
from quire.core.step import SampleError, TokenLogprobs
from quire.core.view import ViewUpdate

WIRE_VERSION = 1

AnyRequest = Request | EmbeddingRequest


class SampleDelta(msgspec.Struct, tag=True, omit_defaults=True):
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
    error: SampleError | None = None
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    first_scheduled_time: float | None = None


class BeamDelta(msgspec.Struct, tag=True):
    """The end of a beam search: hypotheses, best first, as (output token ids, cumulative logprob, finish reason)."""

    request_id: str
    hypotheses: list[tuple[list[int], float, FinishReason]]
    error: SampleError | None = None


Delta = SampleDelta | BeamDelta | EmbeddingDelta


class Hello(msgspec.Struct, tag=True, frozen=True):
    """Repeated until `Welcome` comes back: only then are both ways between the two known to be open."""

    client: int


class AddRequest(msgspec.Struct, tag=True, frozen=True):
    """`client` numbers the API process that hears of it."""

    client: int
    request: AnyRequest


class AbortRequest(msgspec.Struct, tag=True, frozen=True):
    """Of a request of this client: another's is left alone."""

    client: int
    request_id: str


class FinishSample(msgspec.Struct, tag=True, frozen=True):
    """A stop string was found in the sample's text."""

    request_id: str
    index: int
    stop_reason: str


class ResetPrefixCache(msgspec.Struct, tag=True, frozen=True):
    client: int
    call_id: int


class Watch(msgspec.Struct, tag=True, frozen=True):
    """Whether somebody at this client looks at the engine view. Each `enabled` one starts a new layout."""

    client: int
    enabled: bool


ToEngine = Hello | AddRequest | AbortRequest | FinishSample | ResetPrefixCache | Watch


class Welcome(msgspec.Struct, tag=True, frozen=True):
    """The answer to `Hello`."""


class StepOutputs(msgspec.Struct, tag=True, frozen=True):
    """What one step did to this client's requests, in order."""

    deltas: list[Delta]


class RequestRefused(msgspec.Struct, tag=True, frozen=True):
    """The engine does not take the request; `field` and `value` as in InvalidRequestError."""

    request_id: str
    message: str
    field: str | None = None
    value: int | float | str | None = None


class RequestsDropped(msgspec.Struct, tag=True, frozen=True):
    """The engine has given these up, because their client left too much unread."""

    request_ids: list[str]


class CallAnswer(msgspec.Struct, tag=True, frozen=True):
    call_id: int
    result: bool


class ViewMessage(msgspec.Struct, tag=True, frozen=True):
    update: ViewUpdate


Answer = Welcome | RequestRefused | RequestsDropped | CallAnswer | ViewMessage
FromEngine = StepOutputs | Answer

EngineState = Literal["fetching", "loading", "ready", "failed"]


class EngineStatus(msgspec.Struct, frozen=True):
    """The engine's heartbeat, sent by a thread that a long step does not hold up.

    `sent_time`: monotonic seconds, no later than what it tells. `step_seconds`: how long the step that runs now has been
    running; 0 between steps.
    """

    state: EngineState
    sent_time: float
    info: EngineInfo | None = None
    stats: EngineStats | None = None
    step_seconds: float = 0.0
