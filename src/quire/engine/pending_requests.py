"""The requests that one client has at an engine in another process, and the streams that wait for them."""

from __future__ import annotations

import threading
from collections.abc import Collection

from quire.core.wire import AnyRequest, Delta
from quire.engine.requests_in_progress import RequestsInProgress
from quire.engine.stream import Stream, hand_out, take_outputs
from quire.engine.tokenizer import Tokenizer
from quire.errors import EngineDeadError


class PendingRequests:
    """Thread-safe: the event loop adds requests, the reader of the engine's messages ends them."""

    def __init__(self) -> None:
        self._in_progress: RequestsInProgress
        self._streams: dict[str, Stream] = {}
        self._death: EngineDeadError | None = None
        self._lock = threading.Lock()

    def begin(self, tokenizer: Tokenizer) -> None:
        """Before the first request."""
        self._in_progress = RequestsInProgress(tokenizer)

    def check_not_dead(self) -> None:
        """Raises EngineDeadError after `die`."""
        if self._death is not None:
            raise EngineDeadError(str(self._death))

    def add(self, request: AnyRequest, stream: Stream) -> None:
        """Raises EngineDeadError, and InvalidRequestError if the id is in use."""
        with self._lock:
            self.check_not_dead()
            self._in_progress.check_new(request.request_id)
            self._in_progress.add(request)
            self._streams[request.request_id] = stream

    def drop(self, request_id: str, stream: Stream) -> bool:
        """The stream's reader left. False if its request had ended."""
        with self._lock:
            if self._streams.get(request_id) is not stream:
                return False
            del self._streams[request_id]
            self._in_progress.drop(request_id)
            return True

    def abort(self, request_id: str) -> None:
        """The stream gets what there is, with the reason abort."""
        with self._lock:
            stream = self._streams.pop(request_id, None)
            output = self._in_progress.abort(request_id)
        if stream is not None and output is not None:
            hand_out([(stream, output)])

    def digest(self, deltas: list[Delta]) -> list[tuple[str, int, str]]:
        """Hand out what the deltas came to; returns the stop strings found, as in `Digest`."""
        with self._lock:
            digest = self._in_progress.digest(deltas)
            items = take_outputs(digest.outputs, self._streams)
        hand_out(items)
        return digest.stops

    def give_up(self, request_ids: Collection[str], error: Exception) -> None:
        """Their streams get the error."""
        with self._lock:
            streams = [self._streams.pop(request_id, None) for request_id in request_ids]
            for request_id in request_ids:
                self._in_progress.drop(request_id)
        hand_out([(stream, error) for stream in streams if stream is not None])

    def give_up_all(self, error: Exception) -> list[str]:
        """Returns their ids."""
        request_ids = list(self._streams)
        self.give_up(request_ids, error)
        return request_ids

    def die(self, error: EngineDeadError) -> None:
        """All streams get the error, and so does whoever adds a request from now on. Only the first death counts."""
        with self._lock:
            if self._death is not None:
                return
            self._death = error
        self.give_up_all(error)
