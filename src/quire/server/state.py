"""What the routes of one API process share. Made once, at the start; handlers find it at `request.app.state.server`."""

from __future__ import annotations

from dataclasses import dataclass, field

from fastapi import Request

from quire.config import ServerConfig
from quire.engine.async_llm import AsyncLLM
from quire.engine.remote_engine import RemoteEngine
from quire.server.admission import Admission
from quire.server.answer_parser import AnswerFormat
from quire.server.metrics import Metrics
from quire.server.response_store import ResponseStore
from quire.server.tracing_setup import Tracer
from quire.server.view_hub import ViewHub


@dataclass(slots=True)
class ServerState:
    """`connection` is where `llm` gets its engine: health and stats are read off it."""

    config: ServerConfig
    model_name: str
    llm: AsyncLLM
    connection: RemoteEngine
    admission: Admission
    metrics: Metrics
    view: ViewHub
    tracer: Tracer | None
    start_time: int
    """Unix seconds; `created` of the model."""
    chat_template: str | None = None
    """What --chat-template holds; None: the model's own."""
    answer_format: AnswerFormat | None = None
    """How the model marks calls and reasoning; None until the first chat (see chat_turn.py)."""
    responses: ResponseStore = field(default_factory=ResponseStore)
    """What /v1/responses keeps."""


def server_state(request: Request) -> ServerState:
    state: ServerState = request.app.state.server
    return state
