"""Counts HTTP responses by the route's template and status, never by what a client wrote."""

from __future__ import annotations

from collections.abc import Awaitable

from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quire.server.metrics import Metrics


class HTTPMetrics:
    """ASGI middleware. Put it outermost, so that refusals by the other layers are counted too."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        def count(message: Message) -> Awaitable[None]:
            # Not a coroutine of its own: a stream passes here once a chunk.
            if message["type"] == "http.response.start":
                route = scope.get("route")
                template = route.path if isinstance(route, Route) else None
                self._metrics.observe_response(template, message["status"])
            return send(message)

        await self._app(scope, receive, count)
