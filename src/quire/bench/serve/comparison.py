"""The server's own account of a run, from its /metrics, against what the client saw."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from quire.bench.times import RequestTimes
from quire.client.address import ServerAddress
from quire.client.server_metrics import Change, MetricsReading, read_metrics

TOLERANCE = 0.05
COUNTS = {
    "prompt tokens": "prompt_tokens_total",
    "output tokens": "generation_tokens_total",
    "requests": "e2e_request_latency_seconds_count",
}
"""What is counted -> the server's name of it."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One figure from both sides. `server` is None if its metrics do not have it."""

    name: str
    client: float
    server: float | None

    @property
    def difference(self) -> float:
        """Relative to the larger of both."""
        if self.server is None:
            return 1.0
        larger = max(abs(self.client), abs(self.server))
        return abs(self.client - self.server) / larger if larger else 0.0

    @property
    def is_count(self) -> bool:
        return self.name in COUNTS

    @property
    def agrees(self) -> bool:
        return self.difference <= TOLERANCE

    def to_dict(self) -> dict[str, Any]:
        return {"client": self.client, "server": self.server, "difference": self.difference}


def read_server(address: ServerAddress) -> MetricsReading:
    """Raises RemoteError."""
    with httpx.Client(timeout=10, trust_env=False) as http:
        return read_metrics(http, address)


def counts_of(reading: MetricsReading) -> list[float | None]:
    """What of a reading grows with each request."""
    return [reading.values.get(name) for name in COUNTS.values()]


def compare(change: Change, requests: Sequence[RequestTimes]) -> list[Comparison]:
    """Counts and mean latencies of the completed requests. They can agree only if the server had no others."""

    def grown(name: str) -> float | None:
        return change.increase(name) if name in change.after.values else None

    def mean_ms(name: str) -> float | None:
        mean = change.share(f"{name}_sum", f"{name}_count")
        return None if mean is None else 1000 * mean

    completed = [request for request in requests if not request.failed]
    sums = {
        "prompt tokens": sum(one.num_input_tokens for one in completed),
        "output tokens": sum(one.num_output_tokens for one in completed),
        "requests": len(completed),
    }
    return [
        *(Comparison(name, sums[name], grown(of_server)) for name, of_server in COUNTS.items()),
        Comparison("mean TTFT (ms)", _mean_ms([one.ttft for one in completed]), mean_ms("time_to_first_token_seconds")),
        Comparison("mean E2EL (ms)", _mean_ms([one.e2el for one in completed]), mean_ms("e2e_request_latency_seconds")),
    ]


def _mean_ms(seconds: Sequence[float]) -> float:
    return 1000 * statistics.fmean(seconds) if seconds else 0.0
