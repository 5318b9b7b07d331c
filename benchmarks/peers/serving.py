"""Servers: how fast they start, and what their clients see under a load (cases e and f)."""

from __future__ import annotations

import asyncio
import bisect
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
from benchmarks.peers.cases import Figures, Sizes
from benchmarks.peers.contender import Contender
from benchmarks.peers.engines.peer import Variant
from benchmarks.peers.process import EngineError, EngineProcess

from quire.bench.serve.bench import ServeBench, ServeOptions
from quire.bench.serve.datasets import DatasetChoice
from quire.bench.serve.result import ServeResult
from quire.bench.serve.traffic import Traffic
from quire.bench.startup import first_token_time
from quire.bench.workloads import Lengths
from quire.client.address import ServerAddress
from quire.client.server_process import answers, free_port

START_TIMEOUT_S = 900.0
POLL_S = 0.01
RATES = tuple(round(0.5 * 1.2**step, 2) for step in range(24))
"""0.5 to 33 requests a second, each a fifth above the one before it: what is asked is a ratio."""
MAX_P99_MS = {"ttft_p99_ms": 500.0, "tpot_p99_ms": 50.0}
RATE_SECONDS = 20.0
"""So long at least requests come at a rate that is asked: of as many requests as case f has, a high rate would be over before a
queue forms."""
NEAR = 1.5
"""Up to so many times the limits a rate is asked once more: of few requests p99 is the slowest, and one pause decides it."""


@dataclass(slots=True)
class RunningServer:
    """An engine's own HTTP server; the caller stops its process."""

    process: EngineProcess
    address: ServerAddress


def start_server(contender: Contender, variant: Variant) -> RunningServer:
    """Returns when it answers that it is ready. Raises EngineError."""
    assert contender.peer.serve is not None
    port = free_port()
    server = contender.peer.serve(contender.environment, variant, contender.weights, port)
    running = RunningServer(
        contender.start_process(server.command, is_worker=False), ServerAddress(f"http://127.0.0.1:{port}")
    )
    try:
        _wait_until_ready(running, server.ready_path)
    except BaseException:
        running.process.stop()
        raise
    return running


def _wait_until_ready(server: RunningServer, path: str) -> None:
    with httpx.Client(trust_env=False, timeout=5) as client:
        while not answers(client, server.address.root + path):
            if not server.process.is_running:
                raise EngineError(server.process.failure())
            if time.perf_counter() - server.process.start_time > START_TIMEOUT_S:
                raise EngineError(f"its server was not ready within {START_TIMEOUT_S:.0f} s")
            time.sleep(POLL_S)


def first_token_through_server(contender: Contender, prompt: list[int]) -> float:
    """Seconds from the start of the server's process to the first token at its client. Raises EngineError or RemoteError."""
    server = start_server(contender, contender.variant)
    try:
        return first_token_time(server.address, prompt) - server.process.start_time
    finally:
        server.process.stop()


def highest_good(rates: Sequence[float], is_good: Callable[[float], bool]) -> float:
    """The last of ascending rates that is good, where none above a bad one is; 0 if none is. By halving: low rates take
    the longest, and most of them need not be asked."""
    num_good = bisect.bisect_left(rates, True, key=lambda rate: not is_good(rate))
    return rates[num_good - 1] if num_good else 0.0


def num_requests_at(rate: float, sizes: Sizes) -> int:
    """When the highest rate is looked for."""
    return max(sizes.served, math.ceil(rate * RATE_SECONDS))


@dataclass(frozen=True, slots=True)
class Load:
    """The requests of case f: pieces of a text, sent at random times."""

    model: str
    text_path: Path
    sizes: Sizes

    def figures(self, server: RunningServer, seed: int) -> Figures:
        """Raises EngineError if a request fails."""
        return _figures(self._run(server, self.sizes.request_rate, seed, self.sizes.served))

    def highest_rate(self, server: RunningServer, name: str) -> float:
        """The highest of RATES whose p99 TTFT and TPOT stay within the limits; 0 if none does. Raises EngineError if the
        server ends."""
        return highest_good(RATES, lambda rate: self._is_good(server, name, rate))

    def _is_good(self, server: RunningServer, name: str, rate: float) -> bool:
        for attempt in (0, 1):
            over = self._times_the_limits(server, rate, 1000 * (attempt + 1) + int(100 * rate))
            print(f"f {name}: {rate:g} requests a second take {over:.2f} of what they may", flush=True)
            if over <= 1 or over > NEAR:
                break
        return over <= 1

    def _times_the_limits(self, server: RunningServer, rate: float, seed: int) -> float:
        """The larger share of the two limits; infinite where requests failed, as they do on a server with too many."""
        try:
            figures = _figures(self._run(server, rate, seed, num_requests_at(rate, self.sizes)))
        except EngineError:
            if not server.process.is_running:
                raise
            return math.inf
        return max(figures[name] / limit for name, limit in MAX_P99_MS.items())

    def _run(self, server: RunningServer, rate: float, seed: int, num_requests: int) -> ServeResult:
        sizes = self.sizes
        dataset = DatasetChoice(
            "sonnet",  # the name that serving benchmarks give pieces of a long text
            self.text_path,
            num_requests,
            Lengths(sizes.served_prompt, sizes.served_prompt),
            Lengths(sizes.served_output, sizes.served_output),
            seed=seed,
        )
        options = ServeOptions(server.address, dataset, (Traffic(rate),), tokenizer=self.model)
        server.process.thaw()
        (result,) = asyncio.run(ServeBench(options).run())
        return result


def _figures(result: ServeResult) -> Figures:
    errors = result.errors()
    if errors:
        raise EngineError(f"{sum(errors.values())} requests failed: {next(iter(errors))}")
    found = result.run.to_dict(("ttft", "tpot"), (50, 99))
    return {
        f"{name}_p{percent}_ms": found[f"p{percent}_{name}_ms"] for name in ("ttft", "tpot") for percent in (50, 99)
    }
