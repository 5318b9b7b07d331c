"""`GET /v1/models`: the one model that is served."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from quire.server.errors import NoSuchModelError
from quire.server.state import ServerState, server_state

router = APIRouter()


@router.get("/v1/models")
async def list_models(request: Request) -> dict[str, Any]:
    return {"object": "list", "data": [_card(server_state(request))]}


@router.get("/v1/models/{model:path}")
async def retrieve_model(request: Request, model: str) -> dict[str, Any]:
    state = server_state(request)
    if model != state.model_name:
        raise NoSuchModelError(model, state.model_name)
    return _card(state)


def _card(state: ServerState) -> dict[str, Any]:
    """`max_model_len` is null until the engine has loaded."""
    max_model_len = state.llm.info.max_model_len if state.connection.ready else None
    return {
        "id": state.model_name,
        "object": "model",
        "created": state.start_time,
        "owned_by": "quire",
        "max_model_len": max_model_len,
    }
