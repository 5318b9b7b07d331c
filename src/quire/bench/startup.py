"""How long a server takes from the start of its process to listening, to ready, and to its first token."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from quire.bench.statistics import spread
from quire.client.address import RemoteError
from quire.client.discovery import find_model
from quire.client.load_client import LoadClient
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
        body = msgspec.json.encode(
            {"model": find_model(server.address).name, "prompt": "Hello", "max_tokens": 8, "stream": True}
            | {"temperature": 0, "ignore_eos": True}
        )
        answer = asyncio.run(_ask(server, body))
        if answer is None:
            raise RemoteError("The server's first answer held no token.")
        return StartupTimes(listening, ready, answer - server.start_time)


async def _ask(server: ServerProcess, body: bytes) -> float | None:
    """When the first token came."""
    client = LoadClient(server.address, TIMEOUT_S)
    answer = await client.stream("/v1/completions", body)
    client.close()
    if answer.error is not None:
        raise RemoteError(f"The first request failed: {answer.error}")
    return answer.arrivals[0] if answer.arrivals else None


def startup_dict(runs: Sequence[StartupTimes]) -> dict[str, Any]:
    """Medians in seconds, their spread as a share, and each run."""
    result: dict[str, Any] = {"benchmark": "startup"}
    for name, _ in PHASES:
        found = spread([getattr(run, name) for run in runs])
        result |= {f"{name}_s": found.median, f"{name}_spread": found.relative}
    return result | {"repeats": [asdict(run) for run in runs]}


def print_startup(runs: Sequence[StartupTimes], console: Console) -> None:
    table = Table("seconds after the process started", "median", "least", "most")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, label in PHASES:
        found = spread([getattr(run, name) for run in runs])
        table.add_row(label, *(f"{value:,.3f}" for value in (found.median, found.low, found.high)))
    console.print(table)
