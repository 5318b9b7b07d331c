"""What monitors are told: whether requests would be answered, and when to ask again if not."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import httpx
import pytest

from quire.config import ServerConfig
from quire.errors import EngineDeadError
from quire.server.admission import Admission
from quire.server.app import make_app
from quire.server.metrics import Metrics
from quire.server.routes.view import MAX_WATCHERS


def get(path: str, *, ready: bool = True, alive: bool = True, draining: bool = False) -> httpx.Response:
    def check_alive() -> None:
        if not alive:
            raise EngineDeadError("The engine stopped.")

    admission = Admission(1, 1)
    admission.draining = draining
    server = SimpleNamespace(
        config=ServerConfig(),
        connection=SimpleNamespace(check_alive=check_alive, ready=ready, status=None),
        admission=admission,
        metrics=Metrics("tiny"),
        view=SimpleNamespace(num_watchers=MAX_WATCHERS),
    )

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(make_app(server))  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.get(path)

    return asyncio.run(ask())


@pytest.mark.parametrize("path", ["/health", "/ping", "/health/ready"])
def test_a_server_that_would_not_answer_says_why_and_when_to_ask_again(path: str) -> None:
    well = get(path)
    assert (well.status_code, "retry-after" in well.headers) == (200, False)
    for ill, reason in (
        (get(path, ready=False), "starting" if path == "/health/ready" else "loading"),
        (get(path, alive=False), "The engine stopped."),
        (get(path, draining=True), "shutting down"),
    ):
        assert (ill.status_code, ill.headers["retry-after"]) == (503, "1")
        assert reason in ill.text
    assert get("/health/live", ready=False, alive=False, draining=True).status_code == 200


def test_the_live_view_has_so_many_readers() -> None:
    refused = get("/engine/view")
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "5")
