"""What an operator does to a running server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.server.running_server import RunningServer, running_server

BODY: dict[str, Any] = {"prompt": "abc" * 50, "max_tokens": 1}


@pytest.fixture(scope="module")
def managed(smollm2: str) -> Iterator[RunningServer]:
    """Of a real model: a tiny one ends whatever was asked of it within the time that a test's process may lose."""
    flags = ("--num-threads", "1", "--num-blocks", "1024", "--enable-management")
    with running_server(smollm2, *flags, api_key="secret") as server:
        yield server


def cached_tokens(server: RunningServer) -> int:
    usage = server.http.post("/v1/completions", json=BODY).raise_for_status().json()["usage"]
    found: int = usage["prompt_tokens_details"]["cached_tokens"]
    return found


def test_the_prefix_cache_is_forgotten_when_asked(managed: RunningServer) -> None:
    cached_tokens(managed)
    assert cached_tokens(managed) > 0
    answer = managed.http.post("/reset_prefix_cache")
    assert (answer.status_code, answer.json()) == (200, {"success": True})
    assert cached_tokens(managed) == 0


def test_not_while_sequences_run(managed: RunningServer) -> None:
    cached_tokens(managed)
    endless = BODY | {"max_tokens": 8000, "ignore_eos": True, "stream": True}
    with managed.http.stream("POST", "/v1/completions", json=endless) as answer:
        events = answer.iter_bytes()  # closed, and the answer with it, when nobody holds it
        next(events)
        refused = managed.http.post("/reset_prefix_cache")
    assert refused.status_code == 409
    assert "try again" in refused.json()["error"]["message"]
    managed.wait_for_load(0)
    assert cached_tokens(managed) > 0
