"""The client of the load generator: many streams on one core, as little work a token as Python allows.

httptools parses HTTP in C, msgspec reads only the fields that matter, and no coroutine wakes before a stream ends.
A general client (httpx) wakes a coroutine a chunk and costs several times as much (docs/lab.md).
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httptools
import httpx

from quire.client.address import RemoteError, ServerAddress, error_sentence, shorten
from quire.client.stream_events import Chunk, EventCutter, Usage

MAX_ERROR_BYTES = 64 << 10


@dataclass(slots=True)
class StreamedAnswer:
    """What came back of one request. Times are `time.perf_counter` seconds; `arrivals` has one an event with output."""

    start: float
    arrivals: list[float] = field(default_factory=list)
    end: float = 0.0
    usage: Usage | None = None
    finished: bool = False
    error: str | None = None


class LoadClient:
    """Keeps connections open between requests. Errors end up in the answer; nothing is raised.

    `on_output(text, arrival)` hears of each piece of output, within the read that brought it.
    """

    def __init__(
        self, address: ServerAddress, timeout_s: float, on_output: Callable[[str, float], None] | None = None
    ) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._on_output = on_output
        self._tls = ssl.create_default_context() if address.is_tls else None
        self._idle: list[_Connection] = []
        url = httpx.URL(address.root)
        self._prefix, self._host = url.raw_path.decode().rstrip("/"), url.netloc.decode()
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in address.headers.items())

    async def stream(self, path: str, body: bytes) -> StreamedAnswer:
        """POST a JSON body and read the stream to its end. The time-out covers the whole request."""
        answer = StreamedAnswer(start=time.perf_counter())
        request = self._request(path, body)
        try:
            async with asyncio.timeout(self._timeout_s):
                while not await self._exchange(request, answer):
                    pass
        except TimeoutError:
            answer.error = f"no end after {self._timeout_s:g} s"
        except (OSError, RemoteError) as error:
            answer.error = shorten(str(error)) or type(error).__name__
        answer.end = time.perf_counter()
        return answer

    async def _exchange(self, request: bytes, answer: StreamedAnswer) -> bool:
        """False if a connection kept from before turned out to be closed: the server never saw the request."""
        reused = bool(self._idle)
        connection = self._idle.pop() if reused else await self._connect()
        try:
            await connection.exchange(request, answer)
        except ConnectionError:
            if not reused or connection.heard:
                raise
            return False
        finally:
            if connection.reusable:
                self._idle.append(connection)
            else:
                connection.abort()
        return True

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: _Connection(self._on_output), self._address.host, self._address.port, ssl=self._tls
        )
        return connection

    def _request(self, path: str, body: bytes) -> bytes:
        head = (
            f"POST {self._prefix}{path} HTTP/1.1\r\nHost: {self._host}\r\n{self._headers}"
            f"Accept: text/event-stream\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode("ascii") + body

    def close(self) -> None:
        for connection in self._idle:
            connection.abort()
        self._idle.clear()


class _Connection(asyncio.Protocol):
    """One exchange at a time. httptools calls the `on_...` methods from within `feed_data`."""

    def __init__(self, on_output: Callable[[str, float], None] | None) -> None:
        self._on_output = on_output
        self._transport: Any = None
        self._ended: asyncio.Future[None] | None = None
        self._closed = False
        self.reusable = False
        self.heard = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    async def exchange(self, request: bytes, answer: StreamedAnswer) -> None:
        """Until the answer's end. Raises OSError or RemoteError."""
        self.heard = self.reusable = False
        if self._closed:
            raise ConnectionResetError("The server closed the connection.")
        self._parser = httptools.HttpResponseParser(self)
        self._answer = answer
        self._cutter = EventCutter()
        self._error_body = b""
        self._status = 0
        self._ended = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        await self._ended

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self.heard = True
        self._now = time.perf_counter()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            self._fail(error.__context__ or error)
        except httptools.HttpParserError as error:
            self._fail(RemoteError(f"The server does not speak HTTP: {error}."))

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        if self._status != 200:
            if len(self._error_body) < MAX_ERROR_BYTES:
                self._error_body += data
            return
        for chunk in self._cutter.feed(data):
            self._take(chunk)

    def _take(self, chunk: Chunk) -> None:
        if chunk.error is not None:
            raise RemoteError(f"The stream ended with an error: {error_sentence(chunk.error)}")
        for choice in chunk.choices:
            if choice.adds_output():
                self._answer.arrivals.append(self._now)
                if self._on_output is not None:
                    self._on_output(choice.shown_text, self._now)
            if choice.finish_reason is not None:
                self._answer.finished = True
        if chunk.usage is not None:
            self._answer.usage = chunk.usage

    def on_message_complete(self) -> None:
        if self._status != 200:
            body = self._error_body.decode(errors="replace")
            self._fail(RemoteError(f"The server answered {self._status}: {body}"))
        elif not (self._cutter.done or self._answer.finished):
            self._fail(RemoteError("The stream ended without a finish reason."))
        elif self._ended is not None and not self._ended.done():
            self.reusable = self._parser.should_keep_alive()
            self._ended.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        self._closed = True
        if self._ended is None or self._ended.done():
            return
        if self._cutter.done:  # a server that marks the end by closing
            self._ended.set_result(None)
        else:
            self._fail(ConnectionResetError("The server closed the connection before the stream's end."))

    def _fail(self, error: BaseException) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_exception(error)
