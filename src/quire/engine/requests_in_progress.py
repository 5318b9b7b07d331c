"""The caller's side of every request that runs: turns the engine's deltas into outputs, wherever the engine is."""

from __future__ import annotations

import time

import msgspec

from quire.core.embedding import EmbeddingDelta, EmbeddingRequest, PoolingRequestOutput
from quire.core.outputs import BeamSearchOutput, BeamSearchSequence, RequestOutput
from quire.core.request import Request
from quire.core.wire import AnyRequest, BeamDelta, Delta
from quire.engine.embedding_outputs import pooling_output
from quire.engine.output_processor import RequestState
from quire.engine.tokenizer import Tokenizer
from quire.errors import InvalidRequestError

Output = RequestOutput | PoolingRequestOutput | tuple[str, BeamSearchOutput]


class Digest(msgspec.Struct):
    """What one step's deltas came to. `stops`: (request id, sample, stop string) that the engine does not know yet."""

    outputs: list[Output]
    stops: list[tuple[str, int, str]]


def id_in_use(request_id: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"Request id {request_id!r} is already running; give each request its own.", field="request_id"
    )


class RequestsInProgress:
    """Not thread-safe: one thread at a time."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._states: dict[str, RequestState] = {}
        self._embeddings: dict[str, EmbeddingRequest] = {}

    def __len__(self) -> int:
        return len(self._states) + len(self._embeddings)

    def check_new(self, request_id: str) -> None:
        """Raises InvalidRequestError if the id is in use."""
        if request_id in self._states or request_id in self._embeddings:
            raise id_in_use(request_id)

    def add(self, request: AnyRequest) -> None:
        if isinstance(request, EmbeddingRequest):
            self._embeddings[request.request_id] = request
        else:
            self._states[request.request_id] = RequestState(request, self._tokenizer)

    def drop(self, request_id: str) -> None:
        """Forget a request; what still comes for it is ignored."""
        self._states.pop(request_id, None)
        self._embeddings.pop(request_id, None)

    def abort(self, request_id: str) -> RequestOutput | PoolingRequestOutput | None:
        """Forget a request; returns what it had, its samples finished with abort. Unknown ids are ignored."""
        if request_id in self._embeddings:
            aborted = EmbeddingDelta(request_id, error="it was aborted")
            return pooling_output(self._embeddings.pop(request_id), aborted)
        state = self._states.pop(request_id, None)
        return None if state is None else state.abort()

    def digest(self, deltas: list[Delta]) -> Digest:
        """The outputs that one step's deltas changed, in order."""
        digest, now = Digest([], []), time.monotonic()
        changed: dict[str, set[int]] = {}
        for delta in deltas:
            if isinstance(delta, EmbeddingDelta):
                self._take_embedding(delta, digest)
                continue
            state = self._states.get(delta.request_id)
            if state is None:
                continue
            if isinstance(delta, BeamDelta):
                digest.outputs.append((delta.request_id, self._beam_output(delta, state.request)))
                continue
            if state.has_ended(delta.index):  # by a stop string, of which the engine did not know yet
                continue
            stop = state.append(delta, now)
            if stop is not None and delta.finish_reason is None:
                digest.stops.append((delta.request_id, delta.index, stop))
            if state.finished or not state.wants_end_only:
                changed.setdefault(delta.request_id, set()).add(delta.index)
        for request_id, indices in changed.items():
            state = self._states[request_id]
            digest.outputs.append(state.output(indices))
            if state.finished:
                del self._states[request_id]
        return digest

    def _take_embedding(self, delta: EmbeddingDelta, digest: Digest) -> None:
        request = self._embeddings.pop(delta.request_id, None)
        if request is not None:
            digest.outputs.append(pooling_output(request, delta))

    def _beam_output(self, delta: BeamDelta, request: Request) -> BeamSearchOutput:
        del self._states[delta.request_id]
        sequences = [
            BeamSearchSequence(
                tokens=request.prompt_token_ids + output,
                cum_logprob=logprob,
                text=self._tokenizer.decode(output),
                finish_reason=reason.value,
            )
            for output, logprob, reason in delta.hypotheses
        ]
        return BeamSearchOutput(sequences, delta.error)
