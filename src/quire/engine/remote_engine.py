"""An engine in another process, as its clients see it. Detokenizing and stop strings happen here, on a thread."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec
import zmq

from quire.core.embedding import EmbeddingRequest, PoolingRequestOutput
from quire.core.engine_info import EngineInfo
from quire.core.frames import BadFrameError, Frames
from quire.core.outputs import RequestOutput
from quire.core.request import Request
from quire.core.stats import EngineStats
from quire.core.view import ViewUpdate
from quire.core.wire import (
    AbortRequest,
    AddRequest,
    AddText,
    CallAnswer,
    Delta,
    EngineStatus,
    FinishSample,
    FromEngine,
    Hello,
    RequestRefused,
    RequestsDropped,
    ResetPrefixCache,
    StepOutputs,
    ToEngine,
    ViewMessage,
    Watch,
    Welcome,
)
from quire.engine.engine_addresses import EngineAddresses
from quire.engine.input_processor import InputProcessor
from quire.engine.requests_in_progress import RequestsInProgress
from quire.engine.stream import Stream, StreamItem, hand_out
from quire.engine.tokenizer import Tokenizer
from quire.errors import EngineDeadError, InvalidRequestError

logger = logging.getLogger("quire")

SILENCE_LIMIT_S = 3.0
"""The heart beats five times a second; an engine not heard from for this long is stopped or starved."""
FROZEN_AFTER_S = 10.0
"""When requests stop waiting for an engine not heard from."""
STEP_LIMIT_S = 300.0
"""No step of a healthy engine takes this long."""
POLL_MS = 500
MAX_STEPS_AT_ONCE = 16
"""Few enough that the event loop, which shares a lock, and the heartbeats, which wait, are not held up."""

ViewListener = Callable[[ViewUpdate], None]


@dataclass(frozen=True, slots=True)
class ClientFiles:
    """What a client reads of the model itself."""

    tokenizer: Tokenizer
    inputs: InputProcessor


class RemoteEngine:
    """`engine_fd` is the end of a pipe whose other end the engine holds: when it closes, the engine is gone.

    Requests are sent from the event loop, without waiting; a thread of its own reads what comes back.
    """

    def __init__(
        self,
        addresses: EngineAddresses,
        client: int,
        engine_fd: int,
        read_files: Callable[[EngineInfo], ClientFiles],
    ) -> None:
        self._client = client
        self._engine_fd = engine_fd
        self._read_files = read_files
        self._loop = asyncio.get_running_loop()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._requests = self._connect(zmq.PUSH, addresses.requests)
        self._outputs = self._connect(zmq.PULL, addresses.outputs(client))
        self._stops = self._connect(zmq.PUSH, addresses.requests)
        """A socket belongs to one thread: the reader has its own for the stop strings it finds."""
        self._heartbeats = self._connect(zmq.SUB, addresses.status)
        self._heartbeats.subscribe(b"")
        self._outbound: Frames[ToEngine] = Frames(ToEngine)
        self._inbound: Frames[FromEngine] = Frames(FromEngine)
        self._statuses: Frames[EngineStatus] = Frames(EngineStatus)
        self._files: ClientFiles | None = None
        self._in_progress: RequestsInProgress
        """Made with the tokenizer, before the first request can come."""
        self.status: EngineStatus | None = None
        self._status_time = time.monotonic()
        self._death: EngineDeadError | None = None
        self._streams: dict[str, Stream] = {}
        self._lock = threading.Lock()
        """Guards `_in_progress`, `_streams` and `_death`, which loop and reader share."""
        self._calls: dict[int, asyncio.Future[bool]] = {}
        self._call_ids = itertools.count()
        self._view_listener: ViewListener | None = None
        self._ready = asyncio.Event()
        self._welcome = False
        """Whether a message went to the engine and one came back: sockets connect in their own time."""
        self._stopping = False
        self.num_bad_frames = 0
        self._reader = threading.Thread(target=self._read, name="quire-engine-reader", daemon=True)
        self._reader.start()

    async def wait_ready(self) -> None:
        """Until the engine has loaded and this client can tokenize. Raises EngineDeadError if it never will."""
        await self._ready.wait()
        self.check_alive()

    @property
    def ready(self) -> bool:
        return self._welcome

    @property
    def info(self) -> EngineInfo:
        """Raises EngineDeadError before the engine is ready."""
        if self.status is None or self.status.info is None:
            raise EngineDeadError("The engine is still loading; ask again when /health/ready answers 200.")
        return self.status.info

    @property
    def stats(self) -> EngineStats | None:
        """The newest there are, a fraction of a second old."""
        return None if self.status is None else self.status.stats

    @property
    def tokenizer(self) -> Tokenizer:
        return self._require_files().tokenizer

    @property
    def inputs(self) -> InputProcessor:
        return self._require_files().inputs

    def submit(self, request: Request | EmbeddingRequest, stream: Stream) -> None:
        with self._lock:
            self._check_not_dead()
            self._in_progress.check_new(request.request_id)
            self._in_progress.add(request)
            self._streams[request.request_id] = stream
        if isinstance(request, EmbeddingRequest):
            self._send(AddText(self._client, msgspec.structs.replace(request, prompt=None)))
        else:
            self._send(AddRequest(self._client, msgspec.structs.replace(request, prompt=None)))

    def drop(self, request_id: str, stream: Stream) -> None:
        with self._lock:
            if self._streams.get(request_id) is not stream:
                return
            del self._streams[request_id]
            self._in_progress.drop(request_id)
        self._send(AbortRequest(request_id))

    def abort(self, request_id: str) -> None:
        with self._lock:
            stream = self._streams.pop(request_id, None)
            output = self._in_progress.abort(request_id)
        self._send(AbortRequest(request_id))
        if stream is not None and output is not None:
            hand_out([(stream, output)])

    async def reset_prefix_cache(self) -> bool:
        self.check_alive()
        call_id = next(self._call_ids)
        done = self._calls[call_id] = self._loop.create_future()
        self._send(ResetPrefixCache(self._client, call_id))
        try:
            return await asyncio.wait_for(done, SILENCE_LIMIT_S + STEP_LIMIT_S)
        finally:
            del self._calls[call_id]

    def set_view_listener(self, listener: ViewListener | None) -> None:
        """Call `listener` on the event loop with each update; the first has the layout. None ends it."""
        self._view_listener = listener
        self._send(Watch(self._client, listener is not None))

    def check_alive(self) -> None:
        """Raises EngineDeadError with what is known."""
        self._check_not_dead()
        silence = time.monotonic() - self._status_time
        if self.status is not None and silence > SILENCE_LIMIT_S:
            raise EngineDeadError(
                f"The engine process has not been heard from for {silence:.0f} s; restart the server."
            )
        if self.status is not None and self.status.step_seconds > STEP_LIMIT_S:
            raise EngineDeadError(
                f"The engine has been in one step for {self.status.step_seconds:.0f} s; restart the server."
            )

    def shutdown(self) -> None:
        self._stopping = True
        self._reader.join()
        if self._files is not None:
            self._files.inputs.close()
        self._die(EngineDeadError("The engine was shut down."))
        for socket in (self._requests, self._outputs, self._stops, self._heartbeats):
            socket.close(linger=0)
        self._context.term()

    def _read(self) -> None:
        """The reader thread, until the engine is gone or `shutdown`."""
        poller = zmq.Poller()
        for source in (self._outputs, self._heartbeats, self._engine_fd):
            poller.register(source, zmq.POLLIN)
        while not self._stopping:
            events = dict(poller.poll(POLL_MS))
            if self._heartbeats in events:
                self._drain(self._heartbeats, self._take_status)
            if self._outputs in events:
                self._take_outputs()
            if self._engine_fd in events and not os.read(self._engine_fd, 1):
                # Why is in its log: it may name what clients must not know, such as paths.
                self._die(EngineDeadError("The engine process ended; restart the server."))
                return
            self._check_silence()

    def _check_silence(self) -> None:
        """Requests do not wait for an engine that seems to be stopped. Should it go on, it is told to forget them."""
        silence = time.monotonic() - self._status_time
        if self.status is None or silence < FROZEN_AFTER_S:
            return
        error = EngineDeadError(
            f"The engine process has not been heard from for {silence:.0f} s; the request was given up."
        )
        for request_id in self._give_up(list(self._streams), error):
            self._stops.send(self._outbound.encode(AbortRequest(request_id)), zmq.NOBLOCK)

    def _give_up(self, request_ids: Iterable[str], error: Exception) -> list[str]:
        """Their readers get the error; returns the ids of those that had one."""
        with self._lock:
            streams = {request_id: self._streams.pop(request_id, None) for request_id in request_ids}
            for request_id in streams:
                self._in_progress.drop(request_id)
        given_up = {request_id: stream for request_id, stream in streams.items() if stream is not None}
        hand_out([(stream, error) for stream in given_up.values()])
        return list(given_up)

    def _drain(self, socket: zmq.Socket[bytes], take: Callable[[bytes], None]) -> None:
        while True:
            try:
                frame = socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                take(frame)
            except BadFrameError:
                self.num_bad_frames += 1

    def _take_outputs(self) -> None:
        """Several steps that have come together are taken as one: whoever fell behind the engine catches up."""
        deltas: list[Delta] = []
        for _ in range(MAX_STEPS_AT_ONCE):
            try:
                message = self._inbound.decode(self._outputs.recv(zmq.NOBLOCK))
            except zmq.Again:
                break
            except BadFrameError:
                self.num_bad_frames += 1
                continue
            if isinstance(message, StepOutputs):
                deltas += message.deltas
            else:
                self._take_answer(message)
        if deltas:
            self._take_deltas(deltas)

    def _take_status(self, frame: bytes) -> None:
        self.status = self._statuses.decode(frame)
        self._status_time = time.monotonic()
        if self.status.info is not None and self._files is None:
            try:
                self._files = self._read_files(self.status.info)
            except Exception:
                logger.exception("The tokenizer could not be read.")
                self._die(EngineDeadError("The tokenizer could not be read; the server's log has the reason."))
                return
            self._in_progress = RequestsInProgress(self._files.tokenizer)
        if self._files is not None and not self._welcome:
            self._stops.send(self._outbound.encode(Hello(self._client)), zmq.NOBLOCK)

    def _take_answer(self, answer: Welcome | RequestRefused | RequestsDropped | CallAnswer | ViewMessage) -> None:
        match answer:
            case Welcome():
                self._welcome = True
                self._on_loop(self._ready.set)
            case RequestRefused(request_id, message, field, value):
                self._give_up([request_id], InvalidRequestError(message, field=field, value=value))
            case RequestsDropped(request_ids):
                error = EngineDeadError("The engine was too far ahead of this API process; the request was given up.")
                self._give_up(request_ids, error)
            case CallAnswer(call_id, result):
                self._on_loop(lambda: self._answer(call_id, result))
            case ViewMessage(update):
                self._on_loop(lambda: self._show(update))

    def _take_deltas(self, deltas: list[Delta]) -> None:
        items: list[tuple[Stream, StreamItem]] = []
        with self._lock:
            digest = self._in_progress.digest(deltas)
            for output in digest.outputs:
                if isinstance(output, RequestOutput | PoolingRequestOutput):
                    stream = self._streams.get(output.request_id)
                    if stream is not None:
                        items.append((stream, output))
                        if output.finished:
                            del self._streams[output.request_id]
        hand_out(items)
        for stop in digest.stops:
            self._stops.send(self._outbound.encode(FinishSample(*stop)), zmq.NOBLOCK)

    def _answer(self, call_id: int, result: bool) -> None:
        call = self._calls.get(call_id)
        if call is not None and not call.done():
            call.set_result(result)

    def _show(self, update: ViewUpdate) -> None:
        if self._view_listener is not None:
            self._view_listener(update)

    def _die(self, error: EngineDeadError) -> None:
        """Everyone who waits hears of it."""
        with self._lock:
            if self._death is not None:
                return
            self._death = error
            waiting = [(stream, error) for stream in self._streams.values()]
            self._streams.clear()
        hand_out(waiting)
        self._on_loop(self._fail_calls)

    def _fail_calls(self) -> None:
        self._ready.set()
        for call in self._calls.values():
            if not call.done():
                call.set_exception(EngineDeadError(str(self._death)))

    def _on_loop(self, callback: Callable[[], object]) -> None:
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            # The loop closed: this process is on its way out.
            return

    def _send(self, message: ToEngine) -> None:
        try:
            self._requests.send(self._outbound.encode(message), zmq.NOBLOCK)
        except zmq.ZMQError as error:
            raise EngineDeadError(f"The engine process cannot be reached: {error}.") from error

    def _connect(self, kind: int, address: str) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.connect(address)
        return socket

    def _check_not_dead(self) -> None:
        if self._death is not None:
            raise EngineDeadError(str(self._death))

    def _require_files(self) -> ClientFiles:
        if self._files is None:
            self._check_not_dead()
            raise EngineDeadError("The engine is still loading; ask again when /health/ready answers 200.")
        return self._files
