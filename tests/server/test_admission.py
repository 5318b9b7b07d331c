"""Every place that is taken is given back, and no more are taken than there are."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import Request

from quire.config import ServerConfig
from quire.server.admission import Admission, DrainingError, OverloadedError
from quire.server.app import make_app
from quire.server.metrics import Metrics
from quire.server.response_store import ResponseStore
from quire.server.serving import client_of, time_left


def test_a_client_has_so_many_places_and_all_clients_have_so_many() -> None:
    admission = Admission(max_requests=3, max_client_requests=2)
    for _ in range(2):
        with ExitStack() as places:
            for client in ("a", "a", "b"):
                if client == "b":
                    with pytest.raises(OverloadedError, match="max-client-requests"), admission.enter("a"):
                        pass
                places.enter_context(admission.enter(client))
            with pytest.raises(OverloadedError, match="max-queued-requests"), admission.enter("b"):
                pass
            assert admission.num_unfinished == 3
        assert admission.num_unfinished == 0
    assert not admission._by_client, "clients that left are forgotten"


def test_a_request_that_fails_gives_its_place_back() -> None:
    admission = Admission(max_requests=1, max_client_requests=1)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), admission.enter("a"):
            raise ZeroDivisionError
    assert admission.num_unfinished == 0


def test_who_is_in_stays_while_it_drains() -> None:
    admission = Admission(max_requests=5, max_client_requests=5)
    with admission.enter("a"):
        admission.draining = True
        with pytest.raises(DrainingError), admission.enter("b"):
            pass
        assert admission.num_unfinished == 1
    assert admission.num_unfinished == 0


def test_without_keys_none_that_a_client_makes_up_makes_it_another() -> None:
    def client(header: bytes, address: str, **settings: Any) -> str:
        state = SimpleNamespace(server=SimpleNamespace(config=ServerConfig(**settings)))
        scope = {"type": "http", "app": SimpleNamespace(state=state), "client": (address, 1)}
        return client_of(Request(scope | {"headers": [(b"x-api-key", header)]}))

    assert client(b"a", "10.0.0.1") == client(b"b", "10.0.0.1")
    assert client(b"a", "10.0.0.1") != client(b"a", "10.0.0.2")
    with_keys = {"api_key": ("a", "b")}
    assert client(b"a", "10.0.0.1", **with_keys) == client(b"a", "10.0.0.2", **with_keys)
    assert client(b"a", "10.0.0.1", **with_keys) != client(b"b", "10.0.0.1", **with_keys)


def test_of_two_times_the_nearer_counts_and_a_request_waits_once() -> None:
    config = ServerConfig(queue_timeout=1, request_timeout=1e6)
    arrival_time = time.monotonic() - 50
    left, what = time_left(config, arrival_time, has_begun=False)
    assert (left, "not started" in what) == (0, True)
    left, what = time_left(config, arrival_time, has_begun=True)
    assert (left != 0, "not finished" in what) == (True, True)


SAID = [{"role": "user", "content": "Hi"}]
MESSAGE = {"model": "tiny", "max_tokens": 1, "messages": SAID}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "Hi"}),
        ("/v1/chat/completions", {"messages": SAID}),
        ("/v1/responses", {"input": "Hi"}),
        ("/v1/responses/input_tokens", {"input": "Hi"}),
        ("/v1/messages", MESSAGE),
        ("/v1/messages/count_tokens", MESSAGE),
        ("/tokenize", {"prompt": "Hi"}),
        ("/tokenize", {"messages": SAID}),
        ("/detokenize", {"tokens": [1]}),
    ],
)
def test_a_prompt_is_not_even_read_without_a_place(path: str, body: dict[str, Any]) -> None:
    """There is no tokenizer here that could."""
    response = post_to_full_server(path, body)
    assert response.status_code == 429, response.text


@pytest.mark.parametrize(
    ("limits", "status"),
    [({"max_client_requests": 2}, 429), ({"max_client_requests": 1}, 400), ({"max_queued_requests": 1}, 400)],
)
def test_more_prompts_than_there_are_places_need_not_come_again(limits: dict[str, Any], status: int) -> None:
    assert post_to_full_server("/v1/completions", {"prompt": ["a", "b"]}, **limits).status_code == status


def post_to_full_server(path: str, body: dict[str, Any], **limits: Any) -> httpx.Response:
    server = SimpleNamespace(
        config=ServerConfig(**limits),
        model_name="tiny",
        llm=SimpleNamespace(tokenizer=None),
        connection=SimpleNamespace(check_alive=lambda: None, ready=True),
        admission=Admission(1, 1),
        metrics=Metrics("tiny"),
        responses=ResponseStore(),
    )

    async def post() -> httpx.Response:
        transport = httpx.ASGITransport(make_app(server))  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.post(path, json=body)

    with server.admission.enter("127.0.0.1"):
        return asyncio.run(post())
