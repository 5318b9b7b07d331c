"""`quire serve`: one engine process, N API processes, and this one, which starts, watches and stops them.

It loads next to nothing, so that the port is open within a fraction of a second. Children hold one end of a pipe whose
other end only this process has: however it dies, they notice and leave.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Any

from quire.config import EngineConfig, ServerConfig
from quire.engine.engine_addresses import EngineAddresses
from quire.engine.parent_watch import LEAVE
from quire.errors import QuireError, in_words

logger = logging.getLogger("quire")

MAX_DIRECTORY_LENGTH = 80
"""Bytes of its path. A socket's has room for some 100 (macOS), and ends with the longest name in engine_addresses.py."""
BACKLOG = 2048
POLL_S = 0.2
STOP_GRACE_S = 5.0
"""What children get to end by themselves, beyond the drain time-out, before they are killed."""
IMPATIENCE_S = 0.5
"""The same after a second signal."""
STOP_POLL_S = 0.02
MULTIPROCESS_DIR = "PROMETHEUS_MULTIPROC_DIR"
"""prometheus_client's own variable. It reads it when it is imported, so it is set before the API processes start."""
ONE_BLAS_THREAD = {"OPENBLAS_NUM_THREADS": "1"}
"""numpy's others are of no use here, and as they start they spin on the cores that load the model."""

Child = subprocess.Popen[bytes]


def serve(engine: EngineConfig, server: ServerConfig, executor: str) -> int:
    """Until a signal or a failure ends it; returns the exit code. Raises QuireError before anything is started."""
    with listen(server.host, server.port) as listener, private_directory() as directory:
        host, port = listener.getsockname()[:2]
        # A port that the system chose is told in any case: nothing else does.
        level = logging.INFO if server.port else logging.WARNING
        address = f"[{host}]" if ":" in host else host
        url = f"http://{address}:{port}"
        logger.log(level, "Listening on %s (loading %s)", url, engine.model)
        supervisor = Supervisor(server, directory, url)
        with supervisor.catch_signals() as wakeup:
            supervisor.start(engine, executor, listener)
            return supervisor.watch(wakeup)


class Supervisor:
    def __init__(self, server: ServerConfig, directory: str, url: str) -> None:
        self._server = server
        self._directory = directory
        self._url = url
        self._told_ready = False
        self._signals: list[int] = []
        self._engine_was_lost = False
        self._engine: Child
        self._api: list[Child]
        self._parent_end: int

    def start(self, engine: EngineConfig, executor: str, listener: socket.socket) -> None:
        parent_read, self._parent_end = os.pipe()
        engine_read, engine_end = os.pipe()
        environment, num_workers = self._environment(), self._server.api_workers
        orders = {"directory": self._directory, "parent_fd": parent_read, "log_level": logger.getEffectiveLevel()}
        self._engine = _spawn(
            "quire.engine.engine_process",
            orders | {"config": asdict(engine), "executor": executor, "num_clients": num_workers},
            (parent_read, engine_end),
            environment,
        )
        orders |= {"engine": asdict(engine), "server": asdict(self._server)}
        orders |= {"listener_fd": listener.fileno(), "engine_fd": engine_read}
        self._api = [
            _spawn(
                "quire.server.api_process",
                orders | {"worker": worker},
                (parent_read, engine_read, listener.fileno()),
                environment,
            )
            for worker in range(num_workers)
        ]
        for descriptor in (parent_read, engine_read, engine_end):
            os.close(descriptor)
        # When the API processes have gone, nobody is to wait for an answer.
        listener.close()

    def _environment(self) -> dict[str, str]:
        # Another program's folder for metrics has nothing to do with this server.
        environment = ONE_BLAS_THREAD | {name: value for name, value in os.environ.items() if name != MULTIPROCESS_DIR}
        if self._server.api_workers > 1:
            environment[MULTIPROCESS_DIR] = os.path.join(self._directory, "metrics")
            os.mkdir(environment[MULTIPROCESS_DIR])
        return environment

    def watch(self, wakeup: socket.socket) -> int:
        """Until a signal or a failure ends it; returns the exit code."""
        while True:
            with suppress(TimeoutError):
                wakeup.recv(4096)
            if self._signals:
                logger.info(
                    "Stopping: running requests get %g s to finish (--drain-timeout); another signal ends them at once.",
                    self._server.drain_timeout,
                )
                return self._stop(0, self._server.drain_timeout)
            if not self._told_ready and self._engine_was_ready():
                self._told_ready = True
                logger.info("Ready: %s", self._url)
            code = self._check_children()
            if code is not None:
                return code

    def _check_children(self) -> int | None:
        """The exit code if the server cannot go on. An engine that is lost does not end it, once it was there: clients and
        probes get 503."""
        for worker, process in enumerate(self._api):
            if process.poll() is not None:
                logger.error("API process %d ended with code %s; stopping.", worker, process.returncode)
                return self._stop(1, 0.0)
        code = self._engine.poll()
        if code is not None and not self._engine_was_lost:
            self._engine_was_lost = True
            if not self._engine_was_ready():
                if code != 1:  # Else it has said why: the model is missing, damaged, unsupported or too large.
                    logger.error("The engine process ended with code %s before it was ready; stopping.", code)
                return self._stop(1, 0.0)
            logger.error("The engine process ended with code %s; requests get 503 until the server is restarted.", code)
        return None

    def _engine_was_ready(self) -> bool:
        """The engine binds its request socket when it has loaded."""
        return os.path.exists(EngineAddresses(self._directory).requests.removeprefix("ipc://"))

    def _stop(self, code: int, drain_s: float) -> int:
        """API processes first: they drain. A second signal ends the patience."""
        num_signals = len(self._signals)
        self._end(self._api, drain_s + STOP_GRACE_S, num_signals)
        self._end([self._engine], STOP_GRACE_S, num_signals)
        for child in (*self._api, self._engine):
            child.wait()
        return code

    def _end(self, children: list[Child], patience_s: float, num_signals: int) -> None:
        """Ask them to, and kill those that have not done so in time. After more signals than `num_signals` there is hardly any."""
        for child in children:
            child.send_signal(LEAVE)
        started = time.monotonic()
        while any(child.poll() is None for child in children):
            if len(self._signals) > num_signals:
                patience_s = min(patience_s, IMPATIENCE_S)
            if time.monotonic() - started > patience_s:
                break
            time.sleep(STOP_POLL_S)
        for child in children:
            child.kill()

    @contextmanager
    def catch_signals(self) -> Iterator[socket.socket]:
        """Signals are noted, and wake who reads the socket, which waits for POLL_S at most."""
        read_end, write_end = socket.socketpair()
        read_end.settimeout(POLL_S)
        write_end.setblocking(False)
        signal.set_wakeup_fd(write_end.fileno(), warn_on_full_buffer=False)

        def note(number: int, _: Any) -> None:
            self._signals.append(number)

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, note)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        try:
            yield read_end
        finally:
            signal.set_wakeup_fd(-1)
            read_end.close()
            write_end.close()


@contextmanager
def listen(host: str, port: int) -> Iterator[socket.socket]:
    """A listening socket that children inherit. Raises QuireError for an address where others listen, or that is not ours."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            listener.listen(BACKLOG)
        except OSError as error:
            raise QuireError(
                f"Cannot listen on {host}:{port} ({in_words(error)}); stop what listens there, or choose another"
                " --host or --port."
            ) from error
        yield listener


@contextmanager
def private_directory() -> Iterator[str]:
    """For sockets; mode 0700, gone at the end. Raises QuireError where its path is too long for them."""
    with tempfile.TemporaryDirectory(prefix="quire-", ignore_cleanup_errors=True) as directory:
        if len(os.fsencode(directory)) > MAX_DIRECTORY_LENGTH:
            raise QuireError(
                f"The folder for temporary files, {tempfile.gettempdir()}, has too long a path for sockets; set TMPDIR to a"
                f" shorter one, of at most {MAX_DIRECTORY_LENGTH - len(os.path.basename(directory)) - 1} bytes."
            )
        yield directory


def _spawn(module: str, orders: dict[str, Any], descriptors: tuple[int, ...], environment: dict[str, str]) -> Child:
    """In a process group of its own: Ctrl-C reaches this process only, which passes it on in order."""
    process = subprocess.Popen(  # noqa: S603  (our own module; the orders go through stdin)
        [sys.executable, "-m", module],
        stdin=subprocess.PIPE,
        pass_fds=descriptors,
        process_group=0,
        env=environment,
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(orders).encode())
    process.stdin.close()
    return process
