"""Somebody else's greedy requests: whatever a test does to a server, their answers stay what they are."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from tests.server.own_server import descendants
from tests.server.running_server import RunningServer

PROBE = {"prompt": "The probe says: ", "max_tokens": 200, "temperature": 0, "ignore_eos": True}


def probe(server: RunningServer) -> Any:
    """A greedy answer."""
    answer = server.http.post("/v1/completions", json={**PROBE, "cache_salt": "probe"})
    return answer.raise_for_status().json()["choices"][0]["text"]


@contextmanager
def neighbour(server: RunningServer) -> Iterator[None]:
    """Greedy requests go on meanwhile; each must be what it was before. The processes must be the same."""
    everyone, expected = set(descendants(server.pid)), probe(server)
    over, answers = threading.Event(), []

    def ask() -> None:
        while not over.is_set():
            answers.append(probe(server))

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask)
        try:
            yield
        finally:
            over.set()
        asking.result()
    assert answers
    assert all(answer == expected for answer in answers)
    assert everyone <= set(descendants(server.pid))
    assert server.http.get("/health").status_code == 200
