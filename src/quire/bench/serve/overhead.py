"""What the load generator itself costs: tokens a second that it can take in, and how late it sees a token."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from quire.bench.serve.load import run_load
from quire.bench.serve.result import LoadRun
from quire.bench.statistics import percentile
from quire.client.address import RemoteError, ServerAddress
from quire.client.load_client import LoadClient

NUM_STREAMS = 64
FLOOD_TOKENS = 2000
PACED_TOKENS, PACED_GAP_S = 400, 0.0064
"""Of each stream: 64 streams then bring 10,000 tokens a second."""
SINGLE_GAP_S = 0.005


@dataclass(frozen=True, slots=True)
class Overhead:
    """`flood_tokens_per_s` came through when the responder wrote as fast as it could: many tokens a read.

    `paced_...` is the share of a core that evenly paced tokens took, one a read. Latencies are ms from the responder's
    write to the time stamp here, of a stream that was alone.
    """

    flood_tokens_per_s: float
    paced_tokens_per_s: float
    paced_cpu_share: float
    median_latency_ms: float
    p99_latency_ms: float

    @property
    def capacity(self) -> float:
        """Tokens a second of which each is read alone that would fill the core."""
        return self.paced_tokens_per_s / self.paced_cpu_share

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "capacity_tokens_per_s": self.capacity}


async def measure_overhead() -> Overhead:
    """A flood, then paced streams, then a single one: some ten seconds."""
    latencies: list[float] = []

    def note_latency(text: str, arrival: float) -> None:
        latencies.append(1000 * (arrival - float(text)))

    with responder() as address:
        flood = await _run(LoadClient(address, 120), NUM_STREAMS, FLOOD_TOKENS, 0.0)
        paced = await _run(LoadClient(address, 120), NUM_STREAMS, PACED_TOKENS, PACED_GAP_S)
        await _run(LoadClient(address, 120, note_latency), 1, PACED_TOKENS, SINGLE_GAP_S)
    return Overhead(
        flood_tokens_per_s=flood.output_throughput,
        paced_tokens_per_s=paced.output_throughput,
        paced_cpu_share=paced.client_cpu_s / paced.duration,
        median_latency_ms=percentile(latencies, 50),
        p99_latency_ms=percentile(latencies, 99),
    )


async def _run(client: LoadClient, num_streams: int, num_tokens: int, gap_s: float) -> LoadRun:
    """All streams at once. Raises RemoteError if one fails."""
    body = msgspec.json.encode({"max_tokens": num_tokens, "gap_s": gap_s})
    bodies, ones, zeros = [body] * num_streams, [1] * num_streams, [0.0] * num_streams
    run = await run_load(client, "/v1/chat/completions", bodies, ones, zeros)
    client.close()
    for request in run.requests:
        if request.error is not None:
            raise RemoteError(request.error)
    return run


@contextmanager
def responder() -> Iterator[ServerAddress]:
    """The address of a responder in a process of its own, which ends with the block, or with this process."""
    with subprocess.Popen(
        [sys.executable, "-m", "quire.bench.serve.responder"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        if process.stdin is None or process.stdout is None:
            raise AssertionError("both are pipes")
        try:
            yield ServerAddress(f"http://127.0.0.1:{int(process.stdout.readline())}")
        finally:
            process.stdin.close()
