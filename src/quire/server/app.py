"""The API as an ASGI application: routes, error objects, protection. Everything else is in the files it names."""

from __future__ import annotations

from fastapi import FastAPI

from quire import __version__
from quire.server.errors import add_error_handlers
from quire.server.http_metrics import HTTPMetrics
from quire.server.protection import add_protection
from quire.server.routes import ROUTERS, management
from quire.server.schemas.openapi import failures
from quire.server.state import ServerState


def make_app(state: ServerState) -> FastAPI:
    app = FastAPI(
        title="quire",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses=failures(),
    )
    app.state.server = state
    for router in ROUTERS:
        app.include_router(router)
    if state.config.enable_management:
        app.include_router(management.router)
    add_error_handlers(app, [route for router in (*ROUTERS, management.router) for route in router.routes])
    add_protection(app, state)
    app.add_middleware(HTTPMetrics, metrics=state.metrics)
    return app
