"""A server that a test may freeze, kill and signal, process by process (Linux: /proc)."""

from __future__ import annotations

import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx
from tests.server.running_server import RunningServer, assert_no_warnings

PATIENCE_S = 120.0
"""For what must happen, on a machine that may be busy with much else."""

Result = TypeVar("Result")


def wait_for(condition: Callable[[], Result | None], what: str, timeout_s: float = PATIENCE_S) -> Result:
    """The first true result of `condition`."""
    deadline = time.monotonic() + timeout_s
    while not (result := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not happen within {timeout_s:g} s")
        time.sleep(0.02)
    return result


def is_gone(pid: int) -> bool:
    """Ended, whether or not somebody has taken note."""
    try:
        return _stat(pid)[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def descendants(pid: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents.setdefault(int(_stat(int(folder.name))[1]), []).append(int(folder.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    found = list(parents.get(pid, ()))
    for child in found:
        found += parents.get(child, ())
    return found


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; the name before may contain anything."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def has_loopback_6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


def num_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def num_threads(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class OwnServer:
    """`quire serve FLAGS` on a free port."""

    def __init__(
        self, *flags: str, python_flags: Sequence[str] = (), environment: dict[str, str] | None = None
    ) -> None:
        self._log = tempfile.NamedTemporaryFile()  # noqa: SIM115  (closed by close)
        inherited = {name: value for name, value in os.environ.items() if name != "QUIRE_API_KEY"}
        self.process = subprocess.Popen(
            [sys.executable, *python_flags, "-m", "quire.cli.main", "serve", *flags, "--port", "0"],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env={**inherited, **(environment or {})},
            start_new_session=True,
        )
        self.pid = self.process.pid
        key = dict(itertools.pairwise(flags)).get("--api-key")
        self.headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._everyone: list[int] = []

    def log(self) -> str:
        return Path(self._log.name).read_text(errors="replace")

    @property
    def port(self) -> int:
        def announced() -> re.Match[str] | None:
            found = re.search(r"Listening on \S+:(\d+)", self.log())
            if found is None and self.process.poll() is not None:
                raise RuntimeError(self.log())
            return found

        return int(wait_for(announced, "listening").group(1))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, **settings: Any) -> httpx.Client:
        # Without TLS: to read the certificates of the world takes longer than the request.
        settings = {"timeout": PATIENCE_S, "trust_env": False, "verify": False, "headers": self.headers, **settings}
        return httpx.Client(base_url=self.url, **settings)

    def status_of(self, path: str) -> int | None:
        """None: nobody answers."""
        try:
            with self.client(timeout=10) as client:
                return client.get(path).status_code
        except httpx.TransportError:
            return None

    def wait_ready(self) -> OwnServer:
        def ready() -> bool:
            if self.process.poll() is not None:
                raise RuntimeError(self.log())
            return self.status_of("/health/ready") == 200

        wait_for(ready, "becoming ready")
        self._everyone = descendants(self.pid)
        return self

    def children(self, module: str) -> list[int]:
        """The processes of the server that run a module."""
        return [pid for pid in descendants(self.pid) if module.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()]

    @property
    def engine_pid(self) -> int:
        (pid,) = self.children("quire.engine.engine_process")
        return pid

    @property
    def api_pids(self) -> list[int]:
        return self.children("quire.server.api_process")

    def wait_exit(self) -> int:
        return self.process.wait(PATIENCE_S)

    def wait_all_gone(self) -> None:
        """Not one process is left of those that were there when the server was ready."""
        wait_for(lambda: all(is_gone(pid) for pid in self._everyone), f"the end of {self._everyone}")

    def close(self) -> None:
        """For whatever state the test left it in."""
        for pid in {*self._everyone, *descendants(self.pid), self.pid}:
            if not is_gone(pid):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self._log.close()


@contextmanager
def own_server(*flags: str, ready: bool = True, **settings: Any) -> Iterator[OwnServer]:
    server = OwnServer(*flags, **settings)
    try:
        yield server.wait_ready() if ready else server
        assert_no_warnings(server.log())
    finally:
        server.close()


def counted(server: OwnServer | RunningServer, name: str) -> float:
    """A counter of /metrics, which is some 0.1 s old."""
    page = httpx.get(f"{server.url}/metrics", trust_env=False, verify=False, timeout=PATIENCE_S).raise_for_status().text
    lines = [line for line in page.splitlines() if line.startswith(f"quire:{name}_total")]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def exchange(port: int, request: bytes, *, chunks: Sequence[bytes] = ()) -> bytes:
    """What comes back for bytes on a socket, until the server closes it or is silent for a while after answering."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connection:
        connection.sendall(request)
        for chunk in chunks:
            connection.sendall(chunk)
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
        return answer


def status_line(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])
