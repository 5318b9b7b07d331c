"""A defect of a route is answered like any other failure: as an error object, counted, named, open to allowed pages."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from tests.server.test_metrics import Page

from quire.config import ServerConfig
from quire.server import errors
from quire.server.admission import Admission
from quire.server.app import make_app
from quire.server.metrics import Metrics

ORIGIN = "http://a.example"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/messages"])
def test_what_nobody_foresaw_is_an_answer_like_others(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def check_alive() -> None:
        raise ZeroDivisionError("secret")

    logged: list[str] = []
    monkeypatch.setattr(errors.logger, "error", lambda message, **_: logged.append(message))
    state: Any = SimpleNamespace(
        config=ServerConfig(allowed_origin=(ORIGIN,), allowed_host=("*",)),
        model_name="tiny",
        connection=SimpleNamespace(check_alive=check_alive),
        admission=Admission(8, 8),
        metrics=Metrics("tiny"),
        tracer=None,
    )

    async def ask() -> httpx.Response:
        # Raises what the app lets through, which a server would log once more.
        async with httpx.AsyncClient(transport=httpx.ASGITransport(make_app(state)), base_url="http://test") as client:
            body = {"prompt": "x", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
            return await client.post(path, json=body, headers={"x-request-id": "mine", "origin": ORIGIN})

    response = asyncio.run(ask())
    assert response.status_code == 500
    assert response.json()["error"]["message"] == errors.INTERNAL_MESSAGE
    assert response.headers["x-request-id"] == "mine"
    assert response.headers["access-control-allow-origin"] == ORIGIN
    assert Page(state.metrics.render()).value("quire:http_responses_total", route=path, status="500") == 1
    assert len(logged) == 1


def test_what_fails_once_the_answer_has_begun_breaks_it_off() -> None:
    async def begin(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise ZeroDivisionError

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(errors.UnforeseenErrors(begin)({"type": "http", "path": "/"}, receive, send))
    assert [message["type"] for message in sent] == ["http.response.start"]
