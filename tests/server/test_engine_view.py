"""`/engine/view` of a real server, and the latencies it reads from the metrics."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
from prometheus_client import CollectorRegistry, Histogram
from tests.server.running_server import RunningServer, running_server

from quire.server.routes.view import read_latencies


def events(response: httpx.Response) -> Iterator[tuple[str, Any]]:
    """(name, data) of a stream's events."""
    name = ""
    for line in response.iter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


def test_the_stream_tells_of_a_request_while_it_runs_and_after(null_server: RunningServer) -> None:
    prompt = list(range(2000, 2040))
    with null_server.http.stream("GET", "/engine/view") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        stream = events(response)
        name, first = next(stream)
        assert name == "view"
        assert first["layout"]["num_blocks"] == 4096 - 1
        body = {"model": null_server.model, "prompt": prompt, "max_tokens": 50, "ignore_eos": True}
        null_server.http.post("/v1/completions", json=body).raise_for_status()
        steps: list[list[Any]] = []
        ttft: dict[str, Any] = {"counts": []}
        # An event tells of changes alone, and latencies may come before the last steps do: both are kept as they come.
        while sum(step[5] for step in steps) < 50 or not sum(ttft["counts"]):
            name, data = next(stream)
            if name == "view":
                steps += data["steps"]
            else:
                ttft = data["ttft"]
        # id, end, duration, prefill, decode, sampled, rows
        assert sum(step[3] for step in steps) == 40
        assert sum(step[4] for step in steps) == 49
        assert ttft["edges"][0] == 0.001


def test_latencies_are_read_from_the_histograms() -> None:
    registry = CollectorRegistry()
    seconds = Histogram("quire:time_to_first_token_seconds", "T", ["model"], registry=registry, buckets=(0.1, 1.0))
    for model, value in (("a", 0.05), ("a", 0.5), ("b", 0.5), ("b", 7.0)):
        seconds.labels(model).observe(value)
    latencies = read_latencies(registry, "quire")
    assert set(latencies) == {"ttft"}
    assert latencies["ttft"].edges == [0.1, 1.0]
    assert latencies["ttft"].counts == [1, 2, 1]
    assert round(latencies["ttft"].total_seconds, 6) == 8.05
    assert read_latencies(registry, "vllm") == {}


def test_latencies_are_those_of_all_api_processes(smollm2: str) -> None:
    flags = ("--executor", "null", "--num-blocks", "4096", "--api-workers", "2")
    with running_server(smollm2, *flags) as server, server.http.stream("GET", "/engine/view") as response:

        def ask(number: int) -> None:
            """On a connection of its own: who accepts it answers. Side by side no two may have one id in the engine."""
            body = {"prompt": [3000 + number], "max_tokens": 500, "ignore_eos": True}
            httpx.post(f"{server.url}/v1/completions", json=body, trust_env=False, verify=False).raise_for_status()

        with ThreadPoolExecutor(16) as pool:
            list(pool.map(ask, range(16)))
        latencies = (latency for name, latency in events(response) if name == "latency")
        assert next(latency for latency in latencies if sum(latency["e2el"]["counts"]) >= 16)
