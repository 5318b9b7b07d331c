"""The machine the figures were measured on: what it is, and how fast it reads and multiplies."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.peers.roofline import MachineLimits
from benchmarks.script import ROOT, in_own_process

from quire.bench.environment import collect_environment
from quire.plan.machine import read_machine

REPEATS = 15
ENOUGH_SECONDS = 3.0
SIDE = 2048
WRITTEN = ("benchmarks/results", "benchmarks/img", "benchmarks/RESULTS.md")
"""What runs write themselves: a change to it is none to what is measured."""


def describe() -> dict[str, Any]:
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _git(ROOT, "rev-parse", "HEAD"),
        "uncommitted_changes": uncommitted_changes(ROOT),
        **collect_environment(),
        "kernel_threads": read_machine().num_cores,
    }


def uncommitted_changes(root: Path) -> list[str]:
    """The tracked files that differ from the commit, but for what benchmarks write."""
    return _git(root, "diff", "--name-only", "HEAD", "--", ".", *(f":(exclude){path}" for path in WRITTEN)).splitlines()


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def measure_limits(num_bytes: Mapping[int, float]) -> MachineLimits:
    """In a process of its own, for the sake of torch's threads."""
    limits = in_own_process(_measure, dict(num_bytes), read_machine().num_cores)
    assert isinstance(limits, MachineLimits)
    return limits


def _measure(num_bytes: dict[int, float], num_threads: int) -> MachineLimits:
    import torch

    torch.set_num_threads(num_threads)
    bandwidth = {bits: _bandwidth(int(size)) for bits, size in num_bytes.items()}
    return MachineLimits(bandwidth, _rates())


def _rates() -> dict[str, float]:
    """By type. Numbers can always be multiplied as a wider type, which is faster where the processor has no instruction for them."""
    rates, best = {}, 0.0
    for name, product in _products().items():
        rates[name] = best = max(best, 2 * SIDE**3 / _least_seconds(product))
    return rates


def _bandwidth(num_bytes: int) -> float:
    """Of two reductions that read all and write nothing the faster: either may be held up by its arithmetic."""
    import torch

    values = torch.ones(num_bytes // 4)
    return num_bytes / min(_least_seconds(values.max), _least_seconds(lambda: torch.dot(values, values)))


def _products() -> dict[str, Callable[[], Any]]:
    """The widest first."""
    import torch

    float32 = torch.randn(SIDE, SIDE)
    bfloat16 = float32.bfloat16()
    int8 = torch.randint(-127, 127, (SIDE, SIDE), dtype=torch.int8)
    uint8 = torch.randint(0, 255, (SIDE, SIDE), dtype=torch.uint8)
    packed = torch.ops.onednn.qlinear_prepack(int8, None)
    scales, zeros = torch.ones(SIDE), torch.zeros(SIDE, dtype=torch.int32)
    arguments: tuple[Any, ...] = (uint8, 1.0, 0, packed, scales, zeros, None, 1.0, 0, torch.float32, "none", [], "")
    return {
        "float32": lambda: float32 @ float32,
        "bfloat16": lambda: bfloat16 @ bfloat16,
        "int8": lambda: torch.ops.onednn.qlinear_pointwise(*arguments),
    }


def _least_seconds(work: Callable[[], Any]) -> float:
    """Of some repeats, as many as there is time for: a limit is what was reached, and anything else that ran only hides it."""
    end = time.perf_counter() + ENOUGH_SECONDS
    least = float("inf")
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        least = min(least, time.perf_counter() - start)
        if time.perf_counter() > end:
            break
    return least
