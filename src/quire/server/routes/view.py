"""`GET /engine/view`: the live engine as server-sent events, for the page and for any other eyes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import StreamingResponse
from prometheus_client import CollectorRegistry

from quire.server.view_hub import ViewHub

router = APIRouter()

MAX_WATCHERS = 32
HEARTBEAT_S = 2.0
"""While nothing changes. Latencies are looked at as often."""
LATENCIES = {
    "ttft": "time_to_first_token_seconds",
    "itl": "inter_token_latency_seconds",
    "e2el": "e2e_request_latency_seconds",
}


class Histogram(msgspec.Struct):
    """`counts[i]` requests or tokens took at most `edges[i]` seconds and more than the edge before; the last: longer."""

    edges: list[float]
    counts: list[int]
    total_seconds: float


@router.get("/engine/view", response_class=StreamingResponse)
async def engine_view(request: Request) -> StreamingResponse:
    """Events `view` (a `ViewUpdate` as JSON, several a second while something happens; the first has the layout) and
    `latency` (histograms of TTFT, ITL and E2EL). A reader that falls behind gets the newest state, not a queue."""
    state = request.app.state.server
    hub: ViewHub = state.view
    if hub.num_watchers >= MAX_WATCHERS:
        raise HTTPException(429, f"{MAX_WATCHERS} readers watch this server already; close one.", {"Retry-After": "5"})
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(
        events(hub, state.metrics.registry, state.metrics.namespace), media_type="text/event-stream", headers=headers
    )


async def events(hub: ViewHub, registry: CollectorRegistry, namespace: str) -> AsyncIterator[bytes]:
    """Server-sent events until the reader leaves."""
    loop = asyncio.get_running_loop()
    watcher = hub.join()
    latency, latency_due = b"", 0.0
    try:
        while True:
            try:
                update = await asyncio.wait_for(watcher.next(), HEARTBEAT_S)
            except TimeoutError:
                yield b": nothing changed\n\n"
            else:
                yield event("view", update)
            if loop.time() >= latency_due:
                latency_due = loop.time() + HEARTBEAT_S
                newest = msgspec.json.encode(read_latencies(registry, namespace))
                if newest != latency:
                    latency = newest
                    yield event("latency", latency)
    finally:
        hub.leave(watcher)


def event(name: str, data: bytes) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), data)


def read_latencies(registry: CollectorRegistry, namespace: str) -> dict[str, Histogram]:
    """The server's latency histograms, summed over their labels; those that do not exist yet are left out."""
    histograms = {}
    for key, name in LATENCIES.items():
        full_name = f"{namespace}:{name}"
        buckets: dict[float, float] = {}
        total_seconds = 0.0
        for metric in registry.restricted_registry([f"{full_name}_bucket", f"{full_name}_sum"]).collect():
            for sample in metric.samples:
                if sample.name.endswith("_bucket"):
                    edge = float(sample.labels["le"])
                    buckets[edge] = buckets.get(edge, 0.0) + sample.value
                elif sample.name.endswith("_sum"):
                    total_seconds += sample.value
        if buckets:
            histograms[key] = _histogram(buckets, total_seconds)
    return histograms


def _histogram(buckets: dict[float, float], total_seconds: float) -> Histogram:
    """From Prometheus' cumulative buckets, the last of which is +Inf."""
    edges = sorted(buckets)
    cumulative = [int(buckets[edge]) for edge in edges]
    counts = [count - below for count, below in zip(cumulative, [0, *cumulative], strict=False)]
    return Histogram(edges[:-1], counts, total_seconds)
