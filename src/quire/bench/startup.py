"""How long a server takes from the start of its process to listening, to ready, and to its first token."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import msgspec
from rich.console import Console

from quire.bench.report import spread_table
from quire.bench.statistics import spread
from quire.client.address import RemoteError, ServerAddress
from quire.client.discovery import find_model
from quire.client.load_client import LoadClient, StreamedAnswer
from quire.client.server_process import ServerProcess

TIMEOUT_S = 600.0
PHASES = (
    ("listening", "/health/live answers"),
    ("ready", "/health/ready answers"),
    ("first_token", "first token of a completion"),
)


@dataclass(frozen=True, slots=True)
class StartupTimes:
    """Seconds from the process's start."""

    listening: float
    ready: float
    first_token: float


def measure_startup(flags: Sequence[str]) -> StartupTimes:
    """Start `quire serve` with these flags, wait for a token, stop it. Raises QuireError if it does not get so far."""
    with ServerProcess(flags) as server:
        listening = server.wait_until("/health/live", TIMEOUT_S)
        ready = server.wait_until("/health/ready", TIMEOUT_S)
        first_token = first_token_time(server.address, "Hello")
        return StartupTimes(listening, ready, first_token - server.start_time)


def first_token_time(address: ServerAddress, prompt: str | list[int]) -> float:
    """When the first token of a completion came, as `time.perf_counter`. Raises RemoteError."""
    body = {"model": find_model(address).name, "prompt": prompt, "max_tokens": 8, "stream": True}
    answer = asyncio.run(_ask(address, msgspec.json.encode(body | {"temperature": 0, "ignore_eos": True})))
    if answer.error is not None:
        raise RemoteError(f"The first request failed: {answer.error}")
    if not answer.arrivals:
        raise RemoteError("The server's first answer held no token.")
    return answer.arrivals[0]


async def _ask(address: ServerAddress, body: bytes) -> StreamedAnswer:
    client = LoadClient(address, TIMEOUT_S)
    answer = await client.stream("/v1/completions", body)
    client.close()
    return answer


def startup_dict(runs: Sequence[StartupTimes]) -> dict[str, Any]:
    """Medians in seconds, their spread as a share, and each run."""
    result: dict[str, Any] = {"benchmark": "startup"}
    for name, _ in PHASES:
        found = spread([getattr(run, name) for run in runs])
        result |= {f"{name}_s": found.median, f"{name}_spread": found.relative}
    return result | {"repeats": [asdict(run) for run in runs]}


def print_startup(runs: Sequence[StartupTimes]) -> None:
    rows = [(label, spread([getattr(run, name) for run in runs])) for name, label in PHASES]
    Console().print(spread_table("seconds after the process started", rows, digits=3))
