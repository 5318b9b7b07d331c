"""Case 40: saturated for long, one client in twenty leaving early: nothing grows, and no answer is ever another one."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.server.own_server import OwnServer, num_files, num_threads, own_server, resident_bytes, wait_for

NUM_CLIENTS = 24
NUM_PROMPTS = 40
LEAVING = 0.05
"""The share of requests whose client leaves before the end."""
GROWTH = 24 * 2**20
"""Bytes by which memory may differ: heaps breathe. A kilobyte a request would come to more within minutes."""


@dataclass
class Tally:
    whole: int = 0
    left: int = 0
    wrong: int = 0


@dataclass(frozen=True)
class Footprint:
    memory: int
    files: int
    threads: int


def footprint(server: OwnServer) -> dict[int, Footprint]:
    """Of each process, when all requests have ended."""
    wait_for(lambda: is_idle(server), "idleness")
    pids = (server.pid, server.engine_pid, *server.api_pids)
    return {pid: Footprint(resident_bytes(pid), num_files(pid), num_threads(pid)) for pid in pids}


def is_idle(server: OwnServer) -> bool:
    with server.client() as client:
        load = client.get("/load").json()
        return bool(load["server_load"] == 0 == load["kv_cache_usage_perc"])


def request(number: int) -> dict[str, Any]:
    """Some share a long beginning; every fourth comes with its own way of asking."""
    fields = ({}, {"n": 1, "logprobs": 1}, {"stop": ["\x00\x00"]}, {"cache_salt": str(number)})[number % 4]
    prompt = "Once upon a time, " * (number % 5) + f"there were {number} "
    return {"prompt": prompt, "max_tokens": 20 + number, "temperature": 0, "ignore_eos": True, **fields}


async def whole(client: httpx.AsyncClient, number: int) -> str:
    answer = await client.post("/v1/completions", json=request(number))
    text: str = answer.raise_for_status().json()["choices"][0]["text"]
    return text


async def leave_early(client: httpx.AsyncClient, number: int, num_chunks: int) -> None:
    async with client.stream("POST", "/v1/completions", json={**request(number), "stream": True}) as answer:
        async for _ in answer.aiter_raw():
            num_chunks -= 1
            if num_chunks < 0:
                return


async def run(server: OwnServer, seconds: float, expected: dict[int, str], tally: Tally, seed: int) -> None:
    until = time.monotonic() + seconds

    async def one(client: httpx.AsyncClient, rng: random.Random) -> None:
        while time.monotonic() < until:
            number = rng.randrange(NUM_PROMPTS)
            if rng.random() < LEAVING:
                await leave_early(client, number, rng.randrange(10))
                tally.left += 1
            else:
                tally.wrong += await whole(client, number) != expected[number]
                tally.whole += 1

    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=server.url, timeout=120, trust_env=False, limits=limits) as client:
        if not expected:
            expected.update({number: await whole(client, number) for number in range(NUM_PROMPTS)})
        await asyncio.gather(*(one(client, random.Random(seed * 1000 + i)) for i in range(NUM_CLIENTS)))


@pytest.fixture
def server(tiny_llama: Path) -> Iterator[OwnServer]:
    """Bitwise the same whatever runs beside it; too little KV for all clients at once, so that there are preemptions."""
    flags = ("--backend", "reference", "--dtype", "float32", "--num-threads", "1", "--num-blocks", "150")
    with own_server(str(tiny_llama), *flags, "--max-num-seqs", "16", "--max-model-len", "512") as server:
        yield server


def soak(server: OwnServer, seconds: float) -> Tally:
    tally, expected = Tally(), dict[int, str]()
    asyncio.run(run(server, seconds / 3, expected, tally, seed=1))
    before = footprint(server)
    asyncio.run(run(server, seconds * 2 / 3, expected, tally, seed=2))
    after = footprint(server)
    assert after.keys() == before.keys(), "a process was replaced"
    for pid in before:
        assert after[pid].files <= before[pid].files + 2, f"{before} {after}"
        assert after[pid].threads <= before[pid].threads + 2, f"{before} {after}"
        assert after[pid].memory <= before[pid].memory + GROWTH, f"{before} {after}"
    assert tally.wrong == 0, tally
    assert server.status_of("/health") == 200
    return tally


def test_case_40_mixed_load_for_some_seconds(server: OwnServer) -> None:
    tally = soak(server, 12)
    assert tally.whole > 20
    assert tally.left


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_case_40_mixed_load_for_half_an_hour(server: OwnServer) -> None:
    tally = soak(server, 1800)
    print(tally)
    assert tally.left > 100
