"""Server-sent events (WHATWG HTML, section 9.2) from an async generator, aborted as soon as the reader leaves."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from typing import Self

import msgspec
from fastapi import Request
from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

from quire.server.errors import describe
from quire.server.serving import ClientGoneError, unless_client_leaves

DONE = b"data: [DONE]\n\n"
_encoder = msgspec.json.Encoder()


def event(data: object, name: str | None = None) -> bytes:
    """One event; `data` becomes JSON (-inf and NaN become null)."""
    line = b"data: %b\n\n" % _encoder.encode(data)
    return line if name is None else b"event: %b\n%b" % (name.encode(), line)


def error_event(error: Exception) -> bytes:
    return event(describe(error)[1])


class EventStream(Response):
    """`events` yields encoded events. Of an exception on the way `fail` makes the last ones."""

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        headers: Mapping[str, str] | None = None,
        fail: Callable[[Exception], bytes] = error_event,
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no", **(headers or {})})
        del self.headers["content-length"]
        self._events = events
        self._fail = fail
        self._first = b""

    async def begin(self, request: Request) -> Self:
        """Waits for the first event, so that what fails before it is answered with a status of its own.

        Raises what `events` raises, and ClientGoneError.
        """
        try:
            self._first = await unless_client_leaves(request.receive, anext(self._events))
        except BaseException:
            await self._events.aclose()
            raise
        return self

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with suppress(ClientGoneError):
                await unless_client_leaves(receive, self._write(send))
        finally:
            await self._events.aclose()

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        if self._first:
            await send({"type": "http.response.body", "body": self._first, "more_body": True})
        try:
            async for chunk in self._events:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        except Exception as error:
            await send({"type": "http.response.body", "body": self._fail(error), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
