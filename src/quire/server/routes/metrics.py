"""`GET /metrics` for Prometheus, `GET /load` for routers."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from quire.server.metrics import CONTENT_TYPE
from quire.server.state import server_state

router = APIRouter()


class Load(BaseModel):
    """What the engine has to do, as of its last message, some 0.1 s ago."""

    server_load: int = Field(description="Sequences that run or wait.")
    num_requests_running: int
    num_requests_waiting: int
    kv_cache_usage_perc: float = Field(description="Share of the KV blocks that sequences hold, 0 to 1.")


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"description": "Prometheus text format", "content": {"text/plain": {}}}},
)
def metrics(request: Request) -> Response:
    """All metrics of this server, whichever of its API processes answers. Not async: it may read files."""
    return Response(server_state(request).metrics.render(), media_type=CONTENT_TYPE)


@router.get("/load")
async def load(request: Request) -> Load:
    stats = server_state(request).metrics.engine.stats
    return Load(
        server_load=stats.num_running + stats.num_waiting,
        num_requests_running=stats.num_running,
        num_requests_waiting=stats.num_waiting,
        kv_cache_usage_perc=stats.kv_cache_usage,
    )
