"""uvicorn's HTTP/1.1 on a socket, with bounds on what a client may send and on how long it may take to send and to read.

uvicorn bounds neither the size of a request's head nor the time of anything but an idle connection.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from http import HTTPStatus
from typing import Any

import httptools
import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from quire.server.error_object import error_answer

MAX_HEAD_SIZE = 32 * 2**10
"""Bytes of the request line and the headers, with what each of them costs to keep."""
COST_OF_A_HEADER = 32
HEAD_TIMEOUT_S = 30.0
"""From the connection, or a request's first byte, to the end of its headers."""
BODY_TIMEOUT_S = 120.0
"""From there to the end of the body: the largest by default, at 1 Mbit/s."""
LINGER_S = 2.0
"""How long the rest of a refused request is thrown away. Closing at once could lose the answer on its way."""


class BoundedProtocol(HttpToolsProtocol):
    """One connection. `reader_timeout_s` is set on a subclass (see `bounded_protocol`)."""

    reader_timeout_s: float
    max_connections: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._receiving: asyncio.TimerHandle | None = None
        """Ends a connection whose request does not arrive in time."""
        self._sending: asyncio.TimerHandle | None = None
        """Ends a connection whose client does not read. Set while its buffer is full."""
        self._head_size = 0
        self._in_head = True
        self._replaying = False
        """Whether the parser is shown a head again that was taken in."""
        self._refusal: tuple[HTTPStatus, str] | None = None
        self._discarding = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, f"{self.max_connections} connections are open; close some.")
            return
        self._expect_within(HEAD_TIMEOUT_S)

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._receiving, self._sending):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._discarding:
            return
        self._unset_keepalive_if_required()
        self._parse(data)
        if self._in_head and not self._discarding:
            # What the parser holds of a header that has not ended.
            self._head_size += len(data)
            if self._head_size > MAX_HEAD_SIZE:
                self._refuse(*_head_too_large())

    def _parse(self, data: bytes) -> None:
        """uvicorn leaves out what follows the head of a request that would rather speak another protocol, and takes its body for the
        next request. Here the wish is passed over (RFC 9110, 7.8): Java's client has it in its first request."""
        try:
            while data:
                try:
                    self.parser.feed_data(data)
                    return
                except httptools.HttpParserUpgrade as upgrade:
                    data = data[upgrade.args[0] :]
                    self._go_on_without_upgrade()
        except httptools.HttpParserError as error:
            self.send_400_response(str(error))

    def _go_on_without_upgrade(self) -> None:
        """With a parser that has seen the same request without the wish."""
        framing = (b"content-length", b"transfer-encoding")
        fields = [b"%b: %b\r\n" % (name, value) for name, value in self.headers if name in framing]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
        self._replaying = True
        self.parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n" % b"".join(fields))

    def on_message_begin(self) -> None:
        if self._replaying:
            return
        if self.cycle is not None and not self.cycle.response_complete:
            # A request behind one that is being answered: to keep it uvicorn would stop reading, and so not see the client leave. The
            # answer closes the connection instead, and the client sends the rest again (RFC 9112, 9.3.2).
            self.cycle.keep_alive = False
            self._discarding = True
            raise ValueError
        super().on_message_begin()
        self._in_head, self._head_size = True, 0
        self._expect_within(HEAD_TIMEOUT_S)

    def on_url(self, url: bytes) -> None:
        if not self._replaying:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._replaying:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._replaying:
            self._replaying = False
            return
        self._in_head = False
        size = len(self.url) + sum(len(name) + len(value) + COST_OF_A_HEADER for name, value in self.headers)
        if size > MAX_HEAD_SIZE:
            self._refusal = _head_too_large()
            raise ValueError
        super().on_headers_complete()
        self._expect_within(BODY_TIMEOUT_S)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            # Its body comes yet: see `_parse`.
            return
        super().on_message_complete()
        if self.cycle.response_complete:
            # Answered before it was all here; uvicorn's own timer is off by now.
            self._expect_within(self.timeout_keep_alive)
        else:
            self._expect_within(None)

    def send_400_response(self, msg: str) -> None:
        """The parser, or a callback of it, refuses the request."""
        if self._discarding:
            return
        self._refuse(*(self._refusal or (HTTPStatus.BAD_REQUEST, "This is no HTTP/1.1 request: it does not parse.")))

    def pause_writing(self) -> None:
        super().pause_writing()
        self._sending = self.loop.call_later(self.reader_timeout_s, self._drop_reader)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._sending is not None:
            self._sending.cancel()
            self._sending = None

    def _expect_within(self, seconds: float | None) -> None:
        """Give what comes next so much time; None: nothing is expected."""
        if self._receiving is not None:
            self._receiving.cancel()
        self._receiving = None if seconds is None else self.loop.call_later(seconds, self._give_up, seconds)

    def _give_up(self, seconds: float) -> None:
        if self.flow.read_paused:
            # It is this side that does not read, such as while an earlier request is being answered.
            self._expect_within(seconds)
        elif self._in_head and self._head_size:
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, f"The request's headers did not arrive within {seconds:g} s.")
        else:
            self.transport.abort()

    def _drop_reader(self) -> None:
        """Reset the connection, so that the kernel too lets go of what it holds for it: up to some megabytes."""
        raw: socket.socket = self.transport.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        """Answer instead of the application, and let the connection go."""
        self._discarding = True
        self._expect_within(None)
        if self.cycle is not None and not self.cycle.response_complete:
            if self.cycle.response_started or not self.cycle.more_body:
                # An earlier answer is on its way: another one in its midst would corrupt it.
                self.transport.abort()
                return
            # It is this request's own body that is refused: nobody else answers it.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        body = msgspec.json.encode(error_answer(status, message))
        self.transport.write(
            b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
            % (status, status.phrase.encode(), len(body), body)
        )
        self.transport.write_eof()
        self._receiving = self.loop.call_later(LINGER_S, self.transport.abort)


def bounded_protocol(reader_timeout_s: float, max_connections: int) -> type[BoundedProtocol]:
    """The class that uvicorn makes one of for each connection."""
    limits = {"reader_timeout_s": reader_timeout_s, "max_connections": max_connections}
    return type("BoundedProtocol", (BoundedProtocol,), limits)


def _head_too_large() -> tuple[HTTPStatus, str]:
    message = f"The request line and headers exceed {MAX_HEAD_SIZE} bytes; send fewer or shorter ones."
    return HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, message
