"""The application before there is one: it takes a second to import, and a probe wants to know at once that we live."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from quire.config import ServerConfig
from quire.server.access import PUBLIC_METHODS, Names

LIVE_PATH = "/health/live"
LIVE_BODY = b'{"status":"live"}'
"""As the route in routes/health.py answers."""
JUDGED_HEADERS = frozenset((b"origin", b"x-request-id"))
"""What the application has rules for."""


class LateApp:
    """Hands every request to the application that `get_app` waits for, but answers plain probes until it is there."""

    def __init__(self, config: ServerConfig, get_app: Callable[[], Awaitable[ASGIApp]]) -> None:
        self._names = Names(config.host, config.allowed_host)
        self._get_app = get_app
        self._app: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._app is None:
            if self._is_plain_probe(scope):
                await _answer_live(send)
                return
            self._app = await self._get_app()
        await self._app(scope, receive, send)

    def _is_plain_probe(self, scope: Scope) -> bool:
        """Whatever the application might refuse is left to it."""
        if scope["type"] != "http" or scope["method"] not in PUBLIC_METHODS or scope["path"] != LIVE_PATH:
            return False
        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if len(hosts) > 1 or any(name in JUDGED_HEADERS for name, _ in scope["headers"]):
            return False
        return all(self._names.include(host) for host in hosts)


async def _answer_live(send: Send) -> None:
    headers = [(b"content-length", b"%d" % len(LIVE_BODY)), (b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": LIVE_BODY})
