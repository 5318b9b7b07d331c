"""`GET /engine/view`: the live engine as server-sent events, for the page and for any other eyes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Mapping

import msgspec
from fastapi import APIRouter, HTTPException, Request, Response
from prometheus_client import CollectorRegistry

from quire.server.errors import describe
from quire.server.sse import EventStream, event
from quire.server.state import ServerState, server_state

router = APIRouter()

MAX_WATCHERS = 32
HEARTBEAT_S = 1.0
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


@router.get("/engine/view", include_in_schema=False)
async def engine_view(request: Request) -> Response:
    """Events until the reader leaves: `view` (a `ViewUpdate` as JSON, several a second while something happens; the
    first has the layout), `latency` (histograms of TTFT, ITL and E2EL) and, at the engine's end, `error`.

    A reader that falls behind gets the newest state, not a queue.
    """
    state = server_state(request)
    state.connection.check_alive()
    if state.view.num_watchers >= MAX_WATCHERS:
        raise HTTPException(429, f"{MAX_WATCHERS} readers watch this server already; close one.", {"Retry-After": "5"})
    return EventStream(_live_events(state), fail=_failure)


async def _live_events(state: ServerState) -> AsyncGenerator[bytes, None]:
    """At most a little over `HEARTBEAT_S` apart. A server that drained does not wait for those who watch.

    Raises EngineDeadError when there is nothing to see any more.
    """
    loop = asyncio.get_running_loop()
    latencies: dict[str, Histogram] | None = None
    latencies_due = 0.0
    with state.view.watching() as watcher:
        while not state.admission.draining or state.admission.num_unfinished:
            state.connection.check_alive()
            try:
                yield event(msgspec.Raw(await asyncio.wait_for(watcher.next(), HEARTBEAT_S)), "view")
            except TimeoutError:
                yield b": nothing changed\n\n"
            if loop.time() >= latencies_due:
                latencies_due = loop.time() + HEARTBEAT_S
                newest = await asyncio.to_thread(read_latencies, state.metrics.whole(), state.metrics.namespace)
                if newest != latencies:
                    latencies = newest
                    yield event(latencies, "latency")


def _failure(error: Exception) -> bytes:
    return event({"message": describe(error)[1].error.message}, "error")


def read_latencies(registry: CollectorRegistry, namespace: str) -> dict[str, Histogram]:
    """The server's latency histograms, summed over their labels; those that do not exist yet are left out."""
    keys = {f"{namespace}:{name}": key for key, name in LATENCIES.items()}
    histograms = {}
    for metric in registry.collect():
        if metric.name not in keys:
            continue
        buckets: Counter[float] = Counter()
        total_seconds = 0.0
        for sample in metric.samples:
            if sample.name.endswith("_bucket"):
                buckets[float(sample.labels["le"])] += int(sample.value)
            elif sample.name.endswith("_sum"):
                total_seconds += sample.value
        if buckets:
            histograms[keys[metric.name]] = _histogram(buckets, total_seconds)
    return histograms


def _histogram(buckets: Mapping[float, int], total_seconds: float) -> Histogram:
    """From Prometheus' cumulative buckets, the last of which is +Inf."""
    edges = sorted(buckets)
    cumulative = [buckets[edge] for edge in edges]
    counts = [count - below for count, below in zip(cumulative, [0, *cumulative], strict=False)]
    return Histogram(edges[:-1], counts, total_seconds)
