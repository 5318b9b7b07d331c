"""A real `quire serve` for a test to talk to."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property

import httpx
import openai

from quire.client.server_process import SERVE, TIE

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 30.0
LOAD_TIMEOUT_S = 20.0
"""For the server to notice what happened, on however busy a machine."""


def assert_no_warnings(log: str) -> None:
    """Of Python: of a coroutine that nobody awaits, of what will no longer work."""
    assert "Warning: " not in log, log


class RunningServer:
    """`url` has no slash at its end and no /v1; `model` is the name it serves under. It needs no key unless it got one."""

    def __init__(self, model: str, flags: tuple[str, ...], api_key: str | None = None) -> None:
        keys = () if api_key is None else ("--api-key", api_key)
        self.model = flags[flags.index("--served-model-name") + 1] if "--served-model-name" in flags else model
        self.api_key = api_key
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (closed by stop)
        self.process = subprocess.Popen(
            [sys.executable, "-c", TIE + SERVE, model, *flags, *keys, "--port", "0"],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env={name: value for name, value in os.environ.items() if name != "QUIRE_API_KEY"},
            start_new_session=True,
        )
        self.pid = self.process.pid
        self.url = ""
        """Known once it listens."""

    @cached_property
    def http(self) -> httpx.Client:
        """For what no OpenAI client has."""
        headers = {} if self.api_key is None else {"Authorization": f"Bearer {self.api_key}"}
        return httpx.Client(base_url=self.url, headers=headers, trust_env=False, timeout=60)

    @cached_property
    def _client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=self.api_key or "none", max_retries=0, timeout=60)

    def client(self) -> openai.OpenAI:
        """The same one every time; it is closed with the server."""
        return self._client

    def async_client(self) -> openai.AsyncOpenAI:
        """A new one, to be used as a context manager on its own event loop."""
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key=self.api_key or "none", max_retries=0, timeout=60)

    def load(self) -> dict[str, float]:
        """What /load answers."""
        answer: dict[str, float] = self.http.get("/load").raise_for_status().json()
        return answer

    def wait_for_load(self, num_sequences: int) -> dict[str, float]:
        """/load, once that many sequences run or wait; what it says is some 0.1 s old."""
        deadline = time.monotonic() + LOAD_TIMEOUT_S
        while (load := self.load())["server_load"] != num_sequences:
            assert time.monotonic() < deadline, load
            time.sleep(0.01)
        return load

    def log(self) -> str:
        """What the server wrote."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def wait_ready(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not (self._listens() and self.http.get("/health/ready").status_code == 200):
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.02)

    def _listens(self) -> bool:
        """Whether it has said where."""
        if not self.url:
            found = re.search(r"Listening on (\S+)", self.log())
            self.url = found.group(1) if found else ""
        return bool(self.url)

    def stop(self) -> None:
        for name in ("http", "_client"):
            if name in self.__dict__:
                self.__dict__.pop(name).close()
        self.process.terminate()
        try:
            self.process.wait(STOP_TIMEOUT_S)
        finally:
            self.process.kill()
            self.process.wait()
            self._log.close()


@contextmanager
def running_server(model: str, *flags: str, api_key: str | None = None) -> Iterator[RunningServer]:
    """`quire serve` with these flags, ready; stopped at the end."""
    server = RunningServer(model, flags, api_key)
    try:
        server.wait_ready()
        yield server
        assert_no_warnings(server.log())
    finally:
        server.stop()
