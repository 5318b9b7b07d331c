"""Somebody else's greedy requests: whatever a test does to a server, their answers stay what they are."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from tests.server.own_server import descendants
from tests.server.running_server import RunningServer

PROBE = {"prompt": "The probe says: ", "max_tokens": 200, "temperature": 0, "ignore_eos": True}


def probe(server: RunningServer) -> str:
    """A greedy answer, streamed."""
    body = {**PROBE, "cache_salt": "probe", "stream": True}
    with server.http.stream("POST", "/v1/completions", json=body) as answer:
        events = [line[6:] for line in answer.raise_for_status().iter_lines() if line]
    return "".join(choice["text"] for event in events[:-1] for choice in json.loads(event)["choices"])


@contextmanager
def neighbour(server: RunningServer) -> Iterator[None]:
    """Greedy requests go on meanwhile; each must be what it was before. The processes must be the same.

    Raises AssertionError by hand: asserts here would be none under `python -O`.
    """
    everyone, expected = set(descendants(server.pid)), probe(server)
    over, answers = threading.Event(), list[str]()

    def ask() -> None:
        while True:
            answers.append(probe(server))
            if over.is_set():  # asked after it: one at least has answered
                return

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask)
        try:
            yield
        finally:
            over.set()
        asking.result()
    if any(answer != expected for answer in answers):
        raise AssertionError(f"not always {expected!r}: {answers}")
    if not everyone <= set(descendants(server.pid)):
        raise AssertionError("a process was replaced")
    server.http.get("/health").raise_for_status()
