"""Starting a real server, and visiting its page with Debian's Chromium."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
from playwright.sync_api import Browser, expect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
CHROMIUM_FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)
START_S = 180
WAIT_MS = 60_000
expect.set_options(timeout=WAIT_MS)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def serve(model: str, *flags: str) -> Iterator[str]:
    """`quire serve`, until ready; yields its URL."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [sys.executable, "-m", "quire.cli.main", "serve", model, "--port", str(port), *flags]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        wait_until_ready(url, process)
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGTERM)
        try:
            process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def wait_until_ready(url: str, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        assert process.poll() is None, f"the server ended: {process.stderr.read() if process.stderr else ''}"
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{url}/health/ready").status_code == 200:
                return
        time.sleep(0.1)
    raise AssertionError(f"the server at {url} was not ready within {START_S} s")


class Visit:
    """One page in a profile of its own. At the end the console must have stayed empty, and other hosts unasked."""

    def __init__(self, browser: Browser, url: str, **context: Any) -> None:
        self.url = url
        self.context = browser.new_context(viewport={"width": 1280, "height": 800}, **context)
        self.context.set_default_timeout(WAIT_MS)
        self.page = self.context.new_page()
        self.console: list[str] = []
        self.hosts: set[str] = set()
        self.page.on("console", lambda message: self.console.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.console.append(f"uncaught: {error}"))
        self.page.on("request", lambda request: self.hosts.add(urlsplit(request.url).netloc))
        self.page.goto(url)

    def close(self) -> None:
        self.context.close()
        assert self.console == []
        assert self.hosts == {urlsplit(self.url).netloc}
