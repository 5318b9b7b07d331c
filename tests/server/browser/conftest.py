"""Chromium, and a page of the real SmolLM2's server."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, sync_playwright
from tests.server.browser.visit import CHROMIUM, CHROMIUM_FLAGS, Visit
from tests.server.running_server import RunningServer


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Not for the whole session: as long as it lives its event loop runs in this thread, and no other can."""
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine: install the package chromium to run the browser tests")
    home = tmp_path_factory.mktemp("chromium")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=CHROMIUM, args=list(CHROMIUM_FLAGS), env={**os.environ, "HOME": str(home)}
        )
        yield browser
        browser.close()


@pytest.fixture
def visit(browser: Browser, real_server: RunningServer) -> Iterator[Visit]:
    visit = Visit(browser, real_server.url)
    yield visit
    visit.close()


@pytest.fixture
def page(visit: Visit) -> Page:
    return visit.page
