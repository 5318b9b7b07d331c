"""What stands before every route: keys, hosts, origins, request ids, sizes. Plain ASGI, outermost first.

The limits on connections, heads and slow clients are in http_protocol.py, those on requests in admission.py.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable

from fastapi import FastAPI, HTTPException
from fastapi.responses import Response
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quire.config import ServerConfig
from quire.server.access import ANY, KEY_NAME, KeyRing, Names, is_own_origin, is_public, key_name
from quire.server.error_object import error_answer
from quire.server.errors import error_response, is_anthropic
from quire.server.schemas.fields import MAX_REQUEST_ID_LENGTH
from quire.server.state import ServerState

REQUEST_ID = "X-Request-Id"
MADE_REQUEST_ID = "quire.request_id"
"""In the scope: the id of a request that brought none, for the log."""
ANTHROPIC_REQUEST_ID = "request-id"
"""What Anthropic's clients read."""
PREFLIGHT_CACHE_S = 600


def add_protection(app: FastAPI, state: ServerState) -> None:
    """Layers added later are further out."""
    config = state.config
    app.add_middleware(BodyLimit, max_size=config.max_body_size)
    app.add_middleware(RequestIds)
    app.add_middleware(Gate, config=config)
    if config.allowed_origin:
        # Outside the gate: a browser asks without the key whether it may send one.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=config.allowed_origin,
            allow_methods=("GET", "POST", "DELETE"),
            allow_headers=("*",),
            expose_headers=(REQUEST_ID, ANTHROPIC_REQUEST_ID, "Retry-After"),
            max_age=PREFLIGHT_CACHE_S,
        )


class Gate:
    """Nothing but the public routes without a key (401); no foreign Host or Origin (403)."""

    def __init__(self, app: ASGIApp, config: ServerConfig) -> None:
        self._app = app
        self._keys = KeyRing(config.api_key)
        self._names = Names(config.host, config.allowed_host)
        self._origins = frozenset(config.allowed_origin)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            # There are no other routes, and uvicorn is told to accept no others.
            return
        if self._keys and not is_public(scope["method"], scope["path"]):
            key = self._keys.find(scope["headers"])
            if key is None:
                message = "This needs an API key: send 'Authorization: Bearer KEY' or 'x-api-key: KEY'."
                refuse = _refuse(scope, 401, message, {"WWW-Authenticate": "Bearer"}, code="invalid_api_key")
                await refuse(scope, receive, send)
                return
            scope[KEY_NAME] = key_name(key)
        refusal = self._foreign(scope)
        if refusal is not None:
            await _refuse(scope, 403, refusal)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _foreign(self, scope: Scope) -> str | None:
        """Why the request's Host or Origin is not welcome; None if it is."""
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) > 1:
            return "The request has more than one Host header."
        host = hosts[0] if hosts else ""
        if hosts and not self._names.include(host):
            return (
                f"This server does not go by the name {host[:64]!r}; if it should, start it with --allowed-host and the"
                " name."
            )
        for origin in headers.getlist("origin"):
            if not (origin in self._origins or ANY in self._origins or is_own_origin(origin, host)):
                return (
                    f"Pages of {origin[:64]!r} may not call this server; if they should, start it with --allowed-origin and"
                    " that origin."
                )
        return None


class RequestIds:
    """A client's X-Request-Id comes back on its response, once; a request without one gets one. One that is long or unprintable is
    refused."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = Headers(scope=scope).get(REQUEST_ID, "")
        if len(given) > MAX_REQUEST_ID_LENGTH or not (given.isascii() and given.isprintable()):
            message = (
                f"{REQUEST_ID} must be at most {MAX_REQUEST_ID_LENGTH} printable ASCII characters, got {len(given)} bytes;"
                " shorten it."
            )
            await _refuse(scope, 400, message, param=REQUEST_ID)(scope, receive, send)
            return
        request_id = given or f"req_{uuid.uuid4().hex}"
        if not given:
            scope[MADE_REQUEST_ID] = request_id
        await self._app(scope, receive, _with_id(send, scope["path"], request_id, given=bool(given)))


def _with_id(send: Send, path: str, request_id: str, *, given: bool) -> Send:
    """`given`: by the request's head, which counts more than its body."""

    def echo(message: Message) -> Awaitable[None]:
        # Not a coroutine of its own: a stream passes here once a chunk.
        if message["type"] == "http.response.start":
            headers = MutableHeaders(raw=message["headers"])
            if given or REQUEST_ID not in headers:
                headers[REQUEST_ID] = request_id
            if is_anthropic(path):
                headers[ANTHROPIC_REQUEST_ID] = headers[REQUEST_ID]
        return send(message)

    return echo


class BodyLimit:
    """413 for a body of more than `max_size` bytes, by what it declares or, chunked, by what came; 415 for one that is packed."""

    def __init__(self, app: ASGIApp, max_size: int) -> None:
        self._app = app
        self._max_size = max_size

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        for name, value in scope["headers"]:
            if name == b"content-encoding" and value.lower() != b"identity":
                message = f"The body is encoded as {value[:64].decode('latin-1')!r}; send it as it is, without Content-Encoding."
                await _refuse(scope, 415, message)(scope, receive, send)
                return
            if name == b"content-length" and int(value) > self._max_size:
                await _refuse(scope, 413, self._message())(scope, receive, send)
                return
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._max_size:
                raise HTTPException(413, self._message())
            return message

        await self._app(scope, counted, send)

    def _message(self) -> str:
        return f"The body is larger than {self._max_size} bytes (--max-body-size); send less at a time."


def _refuse(
    scope: Scope,
    status: int,
    message: str,
    headers: dict[str, str] | None = None,
    *,
    param: str | None = None,
    code: str | None = None,
) -> Response:
    return error_response(scope["path"], status, error_answer(status, message, param, code), headers)
