"""Servers: how fast they start, and what their clients see under a load (cases e and f)."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path

import httpx
import msgspec
from benchmarks.peers.cases import Figures, Sizes
from benchmarks.peers.contender import Contender
from benchmarks.peers.process import EngineError, EngineProcess

from quire.bench.serve.bench import ServeBench, ServeOptions
from quire.bench.serve.datasets import DatasetChoice
from quire.bench.serve.result import ServeResult
from quire.bench.serve.traffic import Traffic
from quire.bench.workloads import Lengths
from quire.client.address import ServerAddress
from quire.client.discovery import find_model
from quire.client.load_client import LoadClient
from quire.client.server_process import free_port

START_TIMEOUT_S = 900.0
POLL_S = 0.01
RATES = (0.5, 1, 1.5, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32)
MAX_TTFT_P99_MS = 500.0
MAX_TPOT_P99_MS = 50.0


@dataclass(slots=True)
class RunningServer:
    """An engine's own HTTP server; the caller stops its process."""

    process: EngineProcess
    address: ServerAddress


def start_server(contender: Contender) -> RunningServer:
    """Returns when it answers that it is ready. Raises EngineError."""
    assert contender.peer.serve is not None
    port = free_port()
    server = contender.peer.serve(contender.environment, contender.variant, contender.weights, port)
    running = RunningServer(
        contender.start_process(server.command, "server"), ServerAddress(f"http://127.0.0.1:{port}")
    )
    try:
        _wait_until_ready(running, server.ready_path)
    except BaseException:
        running.process.stop()
        raise
    return running


def _wait_until_ready(server: RunningServer, path: str) -> None:
    with httpx.Client(trust_env=False, timeout=5) as client:
        while time.perf_counter() - server.process.start_time < START_TIMEOUT_S:
            if not server.process.is_running:
                raise EngineError(server.process.failure())
            try:
                if client.get(server.address.root + path).status_code == httpx.codes.OK:
                    return
            except httpx.TransportError:
                pass
            time.sleep(POLL_S)
    raise EngineError(f"its server was not ready within {START_TIMEOUT_S:.0f} s")


def first_token_through_server(contender: Contender, prompt: list[int]) -> float:
    """Seconds from the start of the server's process to the first token at its client. Raises EngineError."""
    server = start_server(contender)
    try:
        body = {"model": find_model(server.address).name, "prompt": prompt, "max_tokens": 8}
        body |= {"stream": True, "temperature": 0, "ignore_eos": True}
        answer = asyncio.run(_stream(server.address, msgspec.json.encode(body)))
        if answer is None:
            raise EngineError("its server's first answer held no token")
        return answer - server.process.start_time
    finally:
        server.process.stop()


async def _stream(address: ServerAddress, body: bytes) -> float | None:
    client = LoadClient(address, START_TIMEOUT_S)
    answer = await client.stream("/v1/completions", body)
    client.close()
    if answer.error is not None:
        raise EngineError(f"its server's first answer failed: {answer.error}")
    return answer.arrivals[0] if answer.arrivals else None


@dataclass(frozen=True, slots=True)
class Load:
    """The requests of case f: pieces of a text, sent at random times."""

    model: str
    text_path: Path
    sizes: Sizes

    def figures(self, server: RunningServer, seed: int) -> Figures:
        """Raises EngineError if a request fails."""
        return _figures(self._run(server, self.sizes.request_rate, seed))

    def highest_rate(self, server: RunningServer) -> float:
        """The last of RATES, from the lowest on, whose p99 TTFT and TPOT stay within the limits; 0 if none does."""
        best = 0.0
        for rate in RATES:
            figures = _figures(self._run(server, rate, 1000 + int(10 * rate)))
            if figures["ttft_p99_ms"] > MAX_TTFT_P99_MS or figures["tpot_p99_ms"] > MAX_TPOT_P99_MS:
                break
            best = float(rate)
        return best

    def _run(self, server: RunningServer, rate: float, seed: int) -> ServeResult:
        sizes = self.sizes
        dataset = DatasetChoice(
            "sonnet",  # the name that serving benchmarks give pieces of a long text
            self.text_path,
            sizes.served,
            Lengths(sizes.served_prompt, sizes.served_prompt),
            Lengths(sizes.served_output, sizes.served_output),
            seed=seed,
        )
        options = ServeOptions(server.address, dataset, (Traffic(rate),), tokenizer=self.model)
        server.process.thaw()
        (run,) = asyncio.run(ServeBench(options).run())
        return run.result


def _figures(result: ServeResult) -> Figures:
    errors = result.errors()
    if errors:
        raise EngineError(f"{sum(errors.values())} requests failed: {next(iter(errors))}")
    found = result.measurement.to_dict(("ttft", "tpot"), (50, 99))
    return {
        f"{name}_p{percent}_ms": found[f"p{percent}_{name}_ms"] for name in ("ttft", "tpot") for percent in (50, 99)
    }
