"""One API process: `python -m quire.server.api_process`, its orders as JSON on stdin. Imports no torch."""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import uvicorn

from quire.checkpoint.checkpoint import open_checkpoint
from quire.config import EngineConfig, ServerConfig
from quire.core.engine_info import EngineInfo
from quire.engine.async_llm import AsyncLLM
from quire.engine.engine_addresses import EngineAddresses
from quire.engine.engine_process import leave_with_parent
from quire.engine.input_processor import InputProcessor
from quire.engine.remote_engine import ClientFiles, RemoteEngine
from quire.engine.tokenizer import Tokenizer
from quire.server.admission import Admission
from quire.server.app import make_app
from quire.server.http_protocol import bounded_protocol
from quire.server.metrics import Metrics
from quire.server.request_log import configure_logging
from quire.server.state import ServerState
from quire.server.tracing_setup import make_tracer
from quire.server.view_hub import ViewHub

logger = logging.getLogger("quire")

SWITCH_INTERVAL_S = 0.0005
"""Every system call of the event loop gives the GIL to the busy reader thread; Python's 5 ms are long to wait for it."""
KEEP_ALIVE_S = 65
"""Longer than the 60 s after which common proxies close their own side."""
STOP_S = 2.0
"""For the last bytes of answers, once nothing more is computed."""
RESERVED_FILES = 64
"""Of the open files a process may have, those that are no connections."""


class ApiOrders(msgspec.Struct, frozen=True):
    """`listener_fd`: the listening socket. The other two are ends of pipes that close with their process."""

    engine: EngineConfig
    server: ServerConfig
    directory: str
    worker: int
    listener_fd: int
    parent_fd: int
    engine_fd: int


class ApiServer(uvicorn.Server):
    """uvicorn, without its own signal handlers: draining comes before closing (see `drain`)."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(orders: ApiOrders) -> None:
    config = orders.server
    connection = RemoteEngine(
        EngineAddresses(orders.directory), orders.worker, orders.engine_fd, lambda info: _read_files(orders, info)
    )
    state = make_state(orders, connection)
    server = ApiServer(
        uvicorn.Config(
            make_app(state),
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            http=bounded_protocol(config.reader_timeout, _raise_file_limit() - RESERVED_FILES),
            ws="none",
            timeout_graceful_shutdown=int(STOP_S),
            lifespan="off",
        )
    )
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(_follow_engine(state))]

    def stop() -> None:
        tasks.append(loop.create_task(drain(server, state, config.drain_timeout)))

    loop.add_signal_handler(signal.SIGTERM, stop)
    loop.add_signal_handler(signal.SIGINT, lambda: None)
    await server.serve(sockets=[_listener(orders)])
    for task in tasks:
        task.cancel()
    if state.tracer is not None:
        await asyncio.to_thread(state.tracer.shutdown)
    connection.shutdown()


def _listener(orders: ApiOrders) -> socket.socket:
    """Connections inherit the time after which Linux gives one up whose client takes nothing of what it was sent."""
    listener = socket.socket(fileno=orders.listener_fd)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        milliseconds = int((orders.server.reader_timeout + KEEP_ALIVE_S) * 1000)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
    return listener


def _raise_file_limit() -> int:
    """How many files, and so connections, this process may now have open: all that its user may."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard if hard != resource.RLIM_INFINITY else 2**20


def make_state(orders: ApiOrders, connection: RemoteEngine) -> ServerState:
    config = orders.server
    model_name = config.served_model_name or orders.engine.model
    return ServerState(
        config=config,
        model_name=model_name,
        llm=AsyncLLM.over(connection),
        connection=connection,
        admission=Admission(config.max_queued_requests, config.max_client_requests),
        metrics=Metrics(model_name, config.metrics_namespace),
        view=ViewHub(connection),
        tracer=make_tracer(config.otlp_endpoint),
        start_time=int(time.time()),
        chat_template=None if config.chat_template is None else Path(config.chat_template).read_text(encoding="utf-8"),
    )


async def drain(server: uvicorn.Server, state: ServerState, timeout_s: float) -> None:
    """Refuse what is new, let what runs finish, then stop. A second signal's drain ends the first one's wait."""
    deadline = time.monotonic() + (0.0 if state.admission.draining else timeout_s)
    state.admission.draining = True
    await _finish_requests(state, deadline)
    if state.admission.num_unfinished:
        logger.warning("%d requests did not finish in time; they fail.", state.admission.num_unfinished)
        # Their clients are told so, which takes a moment.
        await asyncio.to_thread(state.connection.shutdown)
        await _finish_requests(state, time.monotonic() + STOP_S)
    server.should_exit = True


async def _finish_requests(state: ServerState, deadline: float) -> None:
    while state.admission.num_unfinished and time.monotonic() < deadline:
        await asyncio.sleep(0.02)


async def _follow_engine(state: ServerState) -> None:
    """The newest engine figures, for /metrics."""
    await state.connection.wait_ready()
    info = state.llm.info
    state.metrics.engine.cache_config = {"block_size": str(info.block_size), "num_gpu_blocks": str(info.num_blocks)}
    while True:
        if state.connection.stats is not None:
            state.metrics.engine.stats = state.connection.stats
        await asyncio.sleep(0.1)


def _read_files(orders: ApiOrders, info: EngineInfo) -> ClientFiles:
    """On the reader's thread, when the engine has loaded: the same files, read without weights."""
    checkpoint = open_checkpoint(orders.engine.model, with_weights=False)
    tokenizer = Tokenizer(checkpoint.tokenizer)
    inputs = InputProcessor(
        tokenizer, checkpoint.config, info.max_model_len, orders.engine.seed, id_prefix=f"{orders.worker}-"
    )
    return ClientFiles(tokenizer, inputs)


def main() -> None:
    orders = msgspec.json.decode(sys.stdin.buffer.read(), type=ApiOrders)
    configure_logging(orders.server.log_format)
    logger.setLevel(logging.INFO)
    leave_with_parent(orders.parent_fd, orders.directory)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    uvloop_factory = _loop_factory()
    with asyncio.Runner(loop_factory=uvloop_factory) as runner:
        runner.run(serve(orders))


def _loop_factory() -> type[asyncio.AbstractEventLoop] | None:
    """uvloop where there is one (not on Windows)."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.Loop


if __name__ == "__main__":
    main()
