"""A real server with the real SmolLM2, and Chromium in front of it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, sync_playwright
from tests.server.browser.visit import CHROMIUM, CHROMIUM_FLAGS, Visit, serve


@pytest.fixture(scope="session")
def server(smollm2: str) -> Iterator[str]:
    with serve(smollm2, "--num-blocks", "1024") as url:
        yield url


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
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
def visit(browser: Browser, server: str) -> Iterator[Visit]:
    visit = Visit(browser, server)
    yield visit
    visit.close()


@pytest.fixture
def page(visit: Visit) -> Page:
    return visit.page
