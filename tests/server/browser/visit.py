"""Visiting a server's page with Debian's Chromium."""

from __future__ import annotations

import shutil
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, expect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
CHROMIUM_FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)
WAIT_MS = 60_000
expect.set_options(timeout=WAIT_MS)


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
