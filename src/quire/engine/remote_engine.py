"""An engine in another process, as its clients see it. Detokenizing and stop strings happen here, on a thread."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from quire.core.engine_info import EngineInfo
from quire.core.stats import EngineStats
from quire.core.view import ViewUpdate
from quire.core.wire import (
    AbortRequest,
    AddRequest,
    Answer,
    AnyRequest,
    CallAnswer,
    EngineStatus,
    FinishSample,
    Hello,
    RequestRefused,
    RequestsDropped,
    ResetPrefixCache,
    ViewMessage,
    Watch,
    Welcome,
)
from quire.engine.engine_addresses import EngineAddresses
from quire.engine.engine_link import LISTEN_S, EngineLink
from quire.engine.input_processor import InputProcessor
from quire.engine.pending_calls import PendingCalls
from quire.engine.pending_requests import PendingRequests
from quire.engine.stream import Stream
from quire.engine.tokenizer import Tokenizer
from quire.errors import EngineDeadError, InvalidRequestError

logger = logging.getLogger("quire")

SILENCE_LIMIT_S = 3.0
"""The heart beats five times a second; an engine not heard from for this long is stopped or starved."""
FROZEN_AFTER_S = 10.0
"""When requests stop waiting for an engine not heard from."""
WELCOME_LIMIT_S = 5.0
"""How long a request waits for this client to hear that the engine is loaded, and to read the tokenizer."""
STEP_LIMIT_S = 300.0
"""No step of a healthy engine takes this long."""
STILL_LOADING = "The engine is still loading; ask again when /health/ready answers 200."

ViewListener = Callable[[ViewUpdate], None]


@dataclass(frozen=True, slots=True)
class ClientFiles:
    """What a client reads of the model itself."""

    tokenizer: Tokenizer
    inputs: InputProcessor


FinishFiles = Callable[[EngineInfo], ClientFiles]
ReadFiles = Callable[[], FinishFiles]
"""The files can be read while the engine loads, what they are used for needs its info."""


class RemoteEngine:
    """Requests are sent from the event loop, without waiting; a thread of its own reads what comes back."""

    def __init__(self, addresses: EngineAddresses, client: int, engine_fd: int, read_files: ReadFiles) -> None:
        self._client = client
        self._read_files = read_files
        self._loop = asyncio.get_running_loop()
        self._link = EngineLink(addresses, client, engine_fd)
        self._requests = PendingRequests()
        self._calls = PendingCalls()
        self._files: ClientFiles | None = None
        self._finish_files: FinishFiles | None = None
        self.status: EngineStatus | None = None
        self._silence_s = 0.0
        """How long the reader has listened in vain: the time in which its process did not run is not the engine's."""
        self._view_listener: ViewListener | None = None
        self._heard = asyncio.Event()
        """Wakes who waits for news of an engine that this client is not ready for."""
        self._ready_or_dead = asyncio.Event()
        self._welcome = False
        """Whether a message went to the engine and one came back: sockets connect in their own time."""
        self._stopping = False
        self._reader = threading.Thread(target=self._read, name="quire-engine-reader", daemon=True)
        self._reader.start()

    async def wait_ready(self) -> None:
        """Until the engine has loaded and this client can tokenize. Raises EngineDeadError if it never will."""
        await self._ready_or_dead.wait()
        self.check_alive()

    @property
    def ready(self) -> bool:
        return self._welcome

    async def wait_if_loaded(self) -> None:
        """Of several clients each becomes ready in its own time: with the engine loaded, wait for this one's moment.

        Whoever asks may know more than this client, from another one: what the engine says from now on decides.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WELCOME_LIMIT_S):
                await self._hear(time.monotonic())
                if self.status is not None and self.status.info is not None:
                    await self.wait_ready()

    async def _hear(self, asked_time: float) -> None:
        """Until a status came that was sent after `asked_time`. Raises EngineDeadError if none ever will."""
        while not self._ready_or_dead.is_set() and (self.status is None or self.status.sent_time < asked_time):
            self._heard.clear()
            await self._heard.wait()
        self.check_alive()

    @property
    def info(self) -> EngineInfo:
        """Raises EngineDeadError before the engine is ready."""
        if self.status is None or self.status.info is None:
            raise EngineDeadError(STILL_LOADING)
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

    def submit(self, request: AnyRequest, stream: Stream) -> None:
        self._requests.add(request, stream)
        self._link.send(AddRequest(self._client, msgspec.structs.replace(request, prompt=None)))

    def drop(self, request_id: str, stream: Stream) -> None:
        if self._requests.drop(request_id, stream):
            self._link.send(AbortRequest(self._client, request_id))

    def abort(self, request_id: str) -> None:
        self._link.send(AbortRequest(self._client, request_id))
        self._requests.abort(request_id)

    async def reset_prefix_cache(self) -> bool:
        self.check_alive()
        return await self._calls.ask(
            lambda call_id: self._link.send(ResetPrefixCache(self._client, call_id)), SILENCE_LIMIT_S + STEP_LIMIT_S
        )

    def set_view_listener(self, listener: ViewListener | None) -> None:
        """Call `listener` on the event loop with each update; the first has the layout. None ends it."""
        self._view_listener = listener
        self._link.send(Watch(self._client, listener is not None))

    def check_alive(self) -> None:
        """Raises EngineDeadError with what is known."""
        self._requests.check_not_dead()
        if self.status is not None and self._silence_s >= SILENCE_LIMIT_S:
            raise EngineDeadError(
                f"The engine process has not been heard from for {self._silence_s:.0f} s; restart the server."
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
        self._die("The engine was shut down.")
        self._link.close()

    def _read(self) -> None:
        """The reader thread."""
        try:
            self._listen()
        except Exception:
            logger.exception("What the engine sent could not be taken in.")
            self._die("What the engine sent could not be taken in; the server's log has the reason.")

    def _listen(self) -> None:
        """Until the engine is gone or `shutdown`."""
        while not self._stopping:
            began = time.monotonic()
            received = self._link.receive()
            listened_s = min(time.monotonic() - began, LISTEN_S)
            self._silence_s = self._silence_s + listened_s if received.nothing else 0.0
            if received.statuses:
                self._take_status(received.statuses[-1])
            for answer in received.answers:
                self._take_answer(answer)
            if received.deltas:
                for stop in self._requests.digest(received.deltas):
                    self._link.reply(FinishSample(*stop))
            if received.engine_ended:
                # Why is in its log: it may name what clients must not know, such as paths.
                self._die("The engine process ended; restart the server.")
                return
            if self.status is not None and self._silence_s >= FROZEN_AFTER_S:
                self._give_up_all()

    def _give_up_all(self) -> None:
        """Requests do not wait for an engine that seems to be stopped. Should it go on, it is told to forget them."""
        error = EngineDeadError(
            f"The engine process has not been heard from for {self._silence_s:.0f} s; the request was given up."
        )
        request_ids = self._requests.give_up_all(error)
        # By the socket that the requests took: what comes by the other one may be read before them.
        self._on_loop(lambda: self._tell_given_up(request_ids))

    def _tell_given_up(self, request_ids: list[str]) -> None:
        if not self._stopping:
            for request_id in request_ids:
                self._link.send(AbortRequest(self._client, request_id))

    def _take_status(self, status: EngineStatus) -> None:
        self.status = status
        if status.state == "loading" and self._finish_files is None:
            # The engine reads them too, and says what is wrong with them; here they are then read once more.
            with contextlib.suppress(Exception):
                self._finish_files = self._read_files()
        if status.info is not None and self._files is None:
            try:
                files = (self._finish_files or self._read_files())(status.info)
            except Exception:
                logger.exception("The tokenizer could not be read.")
                self._die("The tokenizer could not be read; the server's log has the reason.")
                # Else the next status would be another attempt, and one that succeeds would make a dead client ready.
                self._stopping = True
                return
            self._requests.begin(files.tokenizer)
            self._files = files
        if self._files is not None and not self._welcome:
            self._link.reply(Hello(self._client))
        if not self._welcome:
            self._on_loop(self._heard.set)

    def _take_answer(self, answer: Answer) -> None:
        match answer:
            case Welcome():
                self._welcome = True
                self._on_loop(self._end_waits)
            case RequestRefused(request_id, message, field, value):
                self._requests.give_up([request_id], InvalidRequestError(message, field=field, value=value))
            case RequestsDropped(request_ids):
                error = EngineDeadError("The engine was too far ahead of this API process; the request was given up.")
                self._requests.give_up(request_ids, error)
            case CallAnswer(call_id, result):
                self._on_loop(lambda: self._calls.answer(call_id, result))
            case ViewMessage(update):
                self._on_loop(lambda: self._show(update))

    def _show(self, update: ViewUpdate) -> None:
        if self._view_listener is not None:
            self._view_listener(update)

    def _die(self, reason: str) -> None:
        """Everyone who waits hears of it."""
        if self.status is not None and self.status.stats is not None:
            self.status = msgspec.structs.replace(self.status, stats=self.status.stats.of_ended_engine())
        error = EngineDeadError(reason)
        self._requests.die(error)
        self._on_loop(lambda: self._calls.fail(error))
        self._on_loop(self._end_waits)

    def _end_waits(self) -> None:
        self._ready_or_dead.set()
        self._heard.set()

    def _on_loop(self, callback: Callable[[], object]) -> None:
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            # The loop closed: this process is on its way out.
            return

    def _require_files(self) -> ClientFiles:
        if self._files is None:
            self._requests.check_not_dead()
            raise EngineDeadError(STILL_LOADING)
        return self._files
