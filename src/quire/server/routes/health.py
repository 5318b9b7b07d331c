"""Is the process there (live), can it answer (ready), is its engine well (health), how busy is it (load)?"""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute

from quire import __version__
from quire.engine.remote_engine import STILL_LOADING
from quire.errors import EngineDeadError
from quire.server.error_object import error_answer
from quire.server.errors import RETRY_HEADERS, error_response
from quire.server.state import ServerState, server_state

router = APIRouter()


@router.get("/health/live")
async def live() -> dict[str, str]:
    """200 as long as this process answers at all."""
    return {"status": "live"}


@router.get(
    "/health/ready",
    responses={503: {"description": "Not ready.", "content": {"application/json": {"schema": {"type": "object"}}}}},
)
async def ready(request: Request) -> JSONResponse:
    """200 once the model is loaded, 503 before, while draining, and when the engine is gone."""
    state = server_state(request)
    status = state.connection.status
    problem = _problem(state)
    is_ready = problem is None and state.connection.ready
    body = {
        "status": "ready" if is_ready else "not ready",
        "engine": "starting" if status is None else status.state,
    }
    if problem is not None:
        body["reason"] = problem
    return JSONResponse(body, 200 if is_ready else 503, None if is_ready else RETRY_HEADERS)


@router.get("/health")
@router.get("/ping", include_in_schema=False)
async def health(request: Request) -> Response:
    """200 if requests would be answered; 503 with the reason if not."""
    state = server_state(request)
    problem = _problem(state)
    if problem is None and not state.connection.ready:
        problem = STILL_LOADING
    if problem is not None:
        return error_response(request.url.path, 503, error_answer(503, problem), RETRY_HEADERS)
    return JSONResponse({"status": "healthy"})


@router.get("/version")
async def version() -> dict[str, str]:
    return {"version": __version__}


# Monitors ask with HEAD. Not as a second method of each route: the schema would name every operation twice.
for route in [route for route in router.routes if isinstance(route, APIRoute)]:
    router.add_api_route(route.path, route.endpoint, methods=["HEAD"], include_in_schema=False)


def _problem(state: ServerState) -> str | None:
    if state.admission.draining:
        return "The server is shutting down."
    try:
        state.connection.check_alive()
    except EngineDeadError as error:
        return str(error)
    return None
