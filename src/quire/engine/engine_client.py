"""The caller's side of one engine: hands it requests, turns its deltas into outputs. In process for now."""

from __future__ import annotations

from quire.core.outputs import BeamSearchOutput, BeamSearchSequence, RequestOutput
from quire.core.request import Request
from quire.core.wire import BeamDelta, SampleDelta
from quire.engine.engine import Engine
from quire.engine.output_processor import RequestState
from quire.engine.tokenizer import Tokenizer
from quire.errors import InvalidRequestError, QuireError

Output = RequestOutput | tuple[str, BeamSearchOutput]


class EngineClient:
    """Not thread-safe: one thread calls everything."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer) -> None:
        self.engine = engine
        self._tokenizer = tokenizer
        self._states: dict[str, RequestState] = {}

    def add_request(self, request: Request) -> None:
        """Raises InvalidRequestError if the id is in use or the request can never fit; nothing is kept then."""
        if request.request_id in self._states:
            raise InvalidRequestError(
                f"Request id {request.request_id!r} is already running; give each request its own.", field="request_id"
            )
        self.engine.add_request(request)
        self._states[request.request_id] = RequestState(request, self._tokenizer)

    def abort(self, request_id: str) -> RequestOutput | None:
        """Drop a request; returns what it had, its samples finished with abort. Unknown ids are ignored."""
        self.engine.abort(request_id)
        state = self._states.pop(request_id, None)
        return None if state is None else state.abort()

    @property
    def has_unfinished(self) -> bool:
        return self.engine.has_unfinished

    def step(self) -> list[Output]:
        """One engine step; the outputs that changed, in order."""
        changed: dict[str, set[int]] = {}
        outputs: list[Output] = []
        for delta in self.engine.step():
            state = self._states.get(delta.request_id)
            if state is None:
                continue
            if isinstance(delta, BeamDelta):
                outputs.append((delta.request_id, self._beam_output(delta, state.request)))
                continue
            self._append(state, delta)
            changed.setdefault(delta.request_id, set()).add(delta.index)
        for request_id, indices in changed.items():
            output = self._states[request_id].output(indices)
            if output is not None:
                outputs.append(output)
            if self._states[request_id].finished:
                del self._states[request_id]
        return outputs

    def _append(self, state: RequestState, delta: SampleDelta) -> None:
        stop = state.append(delta)
        if stop is not None and delta.finish_reason is None:
            self.engine.finish_sample(delta.request_id, delta.index, stop)

    def _beam_output(self, delta: BeamDelta, request: Request) -> BeamSearchOutput:
        del self._states[delta.request_id]
        if delta.error is not None:
            raise QuireError(f"Beam search of request {delta.request_id} failed: {delta.error}")
        return BeamSearchOutput(
            [
                BeamSearchSequence(
                    tokens=request.prompt_token_ids + output,
                    cum_logprob=logprob,
                    text=self._tokenizer.decode(output),
                    finish_reason=reason.value,
                )
                for output, logprob, reason in delta.hypotheses
            ]
        )
