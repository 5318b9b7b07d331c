"""What an API process serves: the application, its engine, and how both end."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

from fastapi import FastAPI

from quire.checkpoint.checkpoint import open_checkpoint
from quire.checkpoint.small_file import MAX_SETTINGS_BYTES, read_small_text
from quire.core.engine_info import EngineInfo
from quire.engine.async_llm import AsyncLLM
from quire.engine.engine_addresses import EngineAddresses
from quire.engine.input_processor import InputProcessor
from quire.engine.remote_engine import ClientFiles, FinishFiles, RemoteEngine
from quire.engine.tokenizer import Tokenizer
from quire.host.host_memory import give_back_freed_memory
from quire.server.admission import Admission
from quire.server.api_orders import ApiOrders
from quire.server.app import make_app
from quire.server.metrics import Metrics
from quire.server.state import ServerState
from quire.server.tracing_setup import make_tracer
from quire.server.view_hub import ViewHub

logger = logging.getLogger("quire")


class ApiService:
    """Made on the event loop. Raises InvalidRequestError for traces that cannot be sent."""

    def __init__(self, orders: ApiOrders) -> None:
        self._state = _make_state(orders)

    def make_app(self) -> FastAPI:
        return make_app(self._state)

    async def drain(self, timeout_s: float) -> None:
        """Refuse what is new and let what runs finish."""
        admission = self._state.admission
        admission.draining = True
        deadline = time.monotonic() + timeout_s
        while admission.num_unfinished and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        if admission.num_unfinished:
            logger.warning("%d requests did not finish in time; they fail.", admission.num_unfinished)
            await asyncio.to_thread(self._state.connection.shutdown)

    async def close(self) -> None:
        if self._state.tracer is not None:
            await asyncio.to_thread(self._state.tracer.shutdown)
        self._state.connection.shutdown()


def _make_state(orders: ApiOrders) -> ServerState:
    config = orders.server
    addresses = EngineAddresses(orders.directory)
    connection = RemoteEngine(addresses, orders.worker, orders.engine_fd, lambda: _read_files(orders))
    model_name = config.served_model_name or orders.engine.model
    template = config.chat_template
    return ServerState(
        config=config,
        model_name=model_name,
        llm=AsyncLLM.over(connection),
        connection=connection,
        admission=Admission(config.max_queued_requests, config.max_client_requests),
        metrics=Metrics(model_name, config.metrics_namespace, lambda: connection.status),
        view=ViewHub(connection),
        tracer=make_tracer(config.otlp_endpoint),
        start_time=int(time.time()),
        chat_template=None if template is None else read_small_text(Path(template), MAX_SETTINGS_BYTES),
    )


def _read_files(orders: ApiOrders) -> FinishFiles:
    """On the reader's thread, while the engine loads: the same files, read without weights."""
    checkpoint = open_checkpoint(orders.engine.model, with_weights=False)
    tokenizer, config = Tokenizer(checkpoint.tokenizer), checkpoint.config

    def finish(info: EngineInfo) -> ClientFiles:
        inputs = InputProcessor(
            tokenizer, config, info.max_model_len, orders.engine.seed, id_prefix=f"{orders.worker}-"
        )
        give_back_freed_memory()
        return ClientFiles(tokenizer, inputs)

    return finish
