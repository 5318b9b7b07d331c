"""One API process: `python -m quire.server.api_process`, its orders as JSON on stdin. Imports no torch.

It answers the port first. What else it serves is imported meanwhile (see `_import_service`).
"""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import msgspec
import uvicorn
import uvloop
from starlette.types import ASGIApp

from quire.engine.parent_watch import LEAVE, leave_with_parent
from quire.host.collector import made_to_last
from quire.server.api_orders import ApiOrders
from quire.server.http_protocol import bounded_protocol
from quire.server.late_app import LateApp
from quire.server.request_log import configure_logging

logger = logging.getLogger("quire")

SWITCH_INTERVAL_S = 0.0005
"""Every system call of the event loop gives the GIL to the busy reader thread; Python's 5 ms are long to wait for it."""
KEEP_ALIVE_S = 65
"""Longer than the 60 s after which common proxies close their own side."""
CLOSE_S = 2
"""For connections that are still open when nothing more is computed."""
RESERVED_FILES = 64
"""Of the open files a process may have, those that are no connections."""


class Service(Protocol):
    """What is needed here of `quire.server.api_service.ApiService`."""

    def make_app(self) -> ASGIApp: ...

    async def drain(self, timeout_s: float) -> None: ...

    async def close(self) -> None: ...


class ApiServer(uvicorn.Server):
    """uvicorn, without its own signal handlers: draining comes before closing (see `serve`)."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(orders: ApiOrders) -> None:
    """Until LEAVE. Raises what kept the service from being made."""
    config = orders.server
    loop = asyncio.get_running_loop()
    loading = loop.create_task(_load(orders))

    async def get_app() -> ASGIApp:
        return (await asyncio.shield(loading))[1]

    server = ApiServer(
        uvicorn.Config(
            LateApp(config, get_app),
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            http=bounded_protocol(config.reader_timeout, _raise_file_limit() - RESERVED_FILES),
            ws="none",
            timeout_graceful_shutdown=CLOSE_S,
            lifespan="off",
        )
    )
    draining = []  # The loop itself keeps no task alive.

    async def drain() -> None:
        service, _ = await asyncio.shield(loading)
        await service.drain(config.drain_timeout)
        server.should_exit = True

    def end_if_failed(_: object) -> None:
        if not loading.cancelled() and loading.exception() is not None:
            server.should_exit = True

    loading.add_done_callback(end_if_failed)
    loop.add_signal_handler(LEAVE, lambda: draining.append(loop.create_task(drain())))
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, lambda: None)
    if config.api_workers > 1:
        # Of several, one that is not ready would take requests that another one could answer.
        await loading
    await server.serve(sockets=[_listener(orders)])
    service, _ = await loading
    await service.close()


async def _load(orders: ApiOrders) -> tuple[Service, ASGIApp]:
    with made_to_last():
        make_service = await asyncio.to_thread(_import_service)
        service = make_service(orders)
        return service, await asyncio.to_thread(service.make_app)


def _import_service() -> Callable[[ApiOrders], Service]:
    # Here, and on a thread, only because it takes most of a second: until then the port answers that we live.
    from quire.server.api_service import ApiService

    return ApiService


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


def main() -> None:
    orders = msgspec.json.decode(sys.stdin.buffer.read(), type=ApiOrders)
    configure_logging(orders.server.log_format)
    logger.setLevel(orders.log_level)
    leave_with_parent(orders.parent_fd, orders.directory)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(orders))


if __name__ == "__main__":
    main()
