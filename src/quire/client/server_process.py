"""A `quire serve` of one's own, in a process that ends with its owner."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Self

import httpx

from quire.client.address import RemoteError, ServerAddress
from quire.errors import QuireError

STOP_TIMEOUT_S = 30.0
POLL_S = 0.01
TIE = "import ctypes; ctypes.CDLL(None).prctl(1, 15); " if sys.platform == "linux" else ""
"""PR_SET_PDEATHSIG, SIGTERM (prctl(2)): the server is told to stop when its owner dies, even by SIGKILL."""
SERVE = "import sys; from quire.cli.main import main; sys.exit(main(['serve', *sys.argv[1:]]))"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class ServerProcess:
    """Started on construction. `flags` are those of `quire serve`, the model first. Its key is made for it: nobody else on
    this machine can use it.

    Raises QuireError, with the end of what the server wrote, if it stops before it is wanted to.
    """

    def __init__(self, flags: Sequence[str]) -> None:
        port, api_key = free_port(), secrets.token_urlsafe()
        self.address = ServerAddress(f"http://127.0.0.1:{port}", api_key)
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (closed by stop)
        command = [sys.executable, "-c", TIE + SERVE, *flags, "--port", str(port)]
        self.start_time = time.perf_counter()
        self._process = subprocess.Popen(  # noqa: S603  (our own program; the flags are the user's)
            command,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "QUIRE_API_KEY": api_key},
            stdout=self._log,
            stderr=subprocess.STDOUT,
            # A session of its own: Ctrl-C on the terminal is for the owner, who stops the server when it is done with it.
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until(self, path: str, timeout_s: float) -> float:
        """Seconds from the process's start until `path` answers 200."""
        with httpx.Client(trust_env=False, timeout=5, headers=self.address.headers) as client:
            while not answers(client, self.address.root + path):
                if self._process.poll() is not None:
                    raise QuireError(f"The server ended with code {self._process.returncode}: {self.log()}")
                if time.perf_counter() - self.start_time > timeout_s:
                    raise RemoteError(f"The server does not answer {path} after {timeout_s:g} s: {self.log()}")
                time.sleep(POLL_S)
            return time.perf_counter() - self.start_time

    def log(self) -> str:
        """The last lines that the server wrote."""
        self._log.seek(0)
        return "\n".join(self._log.read().decode(errors="replace").splitlines()[-20:])

    def stop(self) -> None:
        """SIGTERM, and SIGKILL for all of its processes if that does not help. Idempotent."""
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()


def answers(client: httpx.Client, url: str) -> bool:
    """Whether with 200."""
    try:
        return client.get(url).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False
