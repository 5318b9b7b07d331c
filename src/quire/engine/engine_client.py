"""The caller's side of an engine in the same thread: hands it requests, turns its deltas into outputs."""

from __future__ import annotations

from quire.core.embedding import PoolingRequestOutput
from quire.core.outputs import RequestOutput
from quire.core.wire import AnyRequest
from quire.engine.encode_engine import EncodeEngine
from quire.engine.engine import Engine
from quire.engine.requests_in_progress import Output, RequestsInProgress
from quire.engine.tokenizer import Tokenizer


class EngineClient:
    """Not thread-safe: one thread calls everything."""

    def __init__(self, engine: Engine | EncodeEngine, tokenizer: Tokenizer) -> None:
        self.engine = engine
        self._requests = RequestsInProgress(tokenizer)

    def add_request(self, request: AnyRequest) -> None:
        """Raises InvalidRequestError if the id is in use or the request can never fit; nothing is kept then."""
        self._requests.check_new(request.request_id)
        self.engine.add_request(request)
        self._requests.add(request)

    def abort(self, request_id: str) -> RequestOutput | PoolingRequestOutput | None:
        """Drop a request; returns what it had, its samples finished with abort. Unknown ids are ignored."""
        self.engine.abort(request_id)
        return self._requests.abort(request_id)

    @property
    def has_unfinished(self) -> bool:
        return self.engine.has_unfinished

    def step(self) -> list[Output]:
        """One engine step; the outputs that changed, in order."""
        digest = self._requests.digest(self.engine.step())
        for request_id, index, stop in digest.stops:
            self.engine.finish_sample(request_id, index, stop)
        return digest.outputs
