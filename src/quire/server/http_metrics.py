"""Counts HTTP responses by the route's template and status, never by what a client wrote, and notes arrivals."""

from __future__ import annotations

import time
from collections.abc import Awaitable

from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quire.server.metrics import Metrics

ARRIVAL_TIME = "quire.arrival_time"
"""In the ASGI scope: monotonic seconds when the request's head had been read. What it waits for later is its latency."""


class HTTPMetrics:
    """ASGI middleware. Put it outermost, so that refusals by the other layers are counted too."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[ARRIVAL_TIME] = time.monotonic()

        def count(message: Message) -> Awaitable[None]:
            # Not a coroutine of its own: a stream passes here once a chunk.
            if message["type"] == "http.response.start":
                route = scope.get("route")
                template = route.path if isinstance(route, Route) else None
                self._metrics.observe_response(template, message["status"])
            return send(message)

        await self._app(scope, receive, count)
