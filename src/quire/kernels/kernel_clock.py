"""What each native kernel of a program takes, for benchmarks (csrc/kernel_clock.h)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from quire.kernels.native_module import module


class KernelTime(NamedTuple):
    """One run of a kernel by the team's first member, within it waits for others too. Tokens and rows are the step's; None where a
    program was run whole."""

    num_tokens: int | None
    num_rows: int | None
    seconds: float


class ClockedKernel(NamedTuple):
    """The kernel at a place of a program; `weight_bytes` that it reads of a weight, 0 where it has none."""

    name: str
    place: int
    weight_bytes: int
    times: list[KernelTime]


@contextmanager
def kernels_clocked() -> Iterator[None]:
    """Programs that are recorded within are measured until its end; others pay nothing."""
    module().clock_kernels(True)
    try:
        yield
    finally:
        module().clock_kernels(False)


def clocked_kernels() -> list[ClockedKernel]:
    """Of the programs recorded within `kernels_clocked`, in the order of recording: to be asked within it too, and not while one runs."""

    def known(count: int) -> int | None:
        return None if count < 0 else count

    return [
        ClockedKernel(
            name,
            place,
            weight_bytes,
            [KernelTime(known(tokens), known(rows), seconds) for tokens, rows, seconds in times],
        )
        for name, place, weight_bytes, times in module().clocked_kernels()
    ]
