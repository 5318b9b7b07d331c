"""Before the application is there, a probe hears that the process lives; everybody else waits for it."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import httpx
import pytest
from starlette.responses import JSONResponse
from starlette.types import ASGIApp

from quire.config import ServerConfig
from quire.server.late_app import LateApp

HEAVY = (
    "fastapi",
    "pydantic",
    "llguidance",
    "tokenizers",
    "prometheus_client",
    "opentelemetry",
    "zmq",
    "numpy",
    "torch",
)


async def whole_app(scope, receive, send) -> None:  # type: ignore[no-untyped-def]
    await JSONResponse({"whole": scope["path"]}, 418)(scope, receive, send)


def over(get_app) -> httpx.AsyncClient:  # type: ignore[no-untyped-def]
    app = LateApp(ServerConfig(), get_app)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost")


def test_a_probe_is_answered_at_once_and_the_rest_when_the_app_is_there() -> None:
    async def scenario() -> None:
        made: asyncio.Future[ASGIApp] = asyncio.get_running_loop().create_future()

        async def get_app() -> ASGIApp:
            return await asyncio.shield(made)

        async with over(get_app) as client:
            other = asyncio.create_task(client.get("/v1/models"))
            live = await client.get("/health/live")
            assert (live.status_code, live.json()) == (200, {"status": "live"})
            assert not other.done()
            made.set_result(whole_app)
            assert (await other).json() == {"whole": "/v1/models"}
            # From now on the application answers for itself.
            assert (await client.get("/health/live")).status_code == 418

    asyncio.run(scenario())


def test_a_probe_may_ask_with_head() -> None:
    async def get_app() -> ASGIApp:
        raise AssertionError

    async def scenario() -> None:
        async with over(get_app) as client:
            assert (await client.head("/health/live")).status_code == 200

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("POST", "/health/live", {}),
        ("GET", "/health/live/", {}),
        ("GET", "/health/live", {"Host": "evil.example"}),
        ("GET", "/health/live", {"Origin": "http://evil.example"}),
        ("GET", "/health/live", {"X-Request-Id": "x" * 1000}),
    ],
)
def test_what_the_app_may_refuse_waits_for_it(method: str, path: str, headers: dict[str, str]) -> None:
    async def get_app() -> ASGIApp:
        return whole_app

    async def scenario() -> None:
        async with over(get_app) as client:
            assert (await client.request(method, path, headers=headers)).status_code == 418

    asyncio.run(scenario())


@pytest.mark.parametrize("module", ["quire.cli.serve", "quire.server.api_process"])
def test_nothing_heavy_is_loaded_before_the_port_answers(module: str) -> None:
    code = f"import sys, {module}; print(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert not set(HEAVY) & set(loaded)
