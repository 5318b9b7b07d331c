"""What native kernels write into while a test runs: memory full of NaN, with guards around it that must stay."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

GUARD = 256  # bytes on each side
BYTE = 0xFF  # four make a NaN in float32, two in bfloat16
AT_ONCE = 64  # tensors whose guards are kept before they are checked


class GuardedMemory:
    def __init__(self) -> None:
        self._lent: list[torch.Tensor] = []

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        num_bytes = math.prod(shape) * dtype.itemsize
        memory = torch.full((GUARD + num_bytes + GUARD,), BYTE, dtype=torch.uint8)
        self._lent.append(memory)
        if len(self._lent) > AT_ONCE:
            self.check()
        return memory[GUARD : GUARD + num_bytes].view(dtype).view(shape)

    def check(self) -> None:
        lent, self._lent = self._lent, []
        for memory in lent:
            assert (memory[:GUARD] == BYTE).all(), "written before the output"
            assert (memory[-GUARD:] == BYTE).all(), "written past the output"


@contextmanager
def guarded_outputs() -> Iterator[GuardedMemory]:
    """`torch.empty((2, 3), dtype=...)` and `x.new_empty(2, 3)`, which are how native.py takes memory, give guarded memory."""
    guarded, real_empty, real_new_empty = GuardedMemory(), torch.empty, torch.Tensor.new_empty

    def empty(*shape: Any, **options: Any) -> torch.Tensor:
        if len(shape) == 1 and isinstance(shape[0], tuple) and set(options) == {"dtype"}:
            return guarded.empty(shape[0], options["dtype"])
        return real_empty(*shape, **options)

    def new_empty(x: torch.Tensor, *shape: Any, **options: Any) -> torch.Tensor:
        if options or not all(isinstance(size, int) for size in shape):
            return real_new_empty(x, *shape, **options)
        return guarded.empty(shape, x.dtype)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "empty", empty)
        patch.setattr(torch.Tensor, "new_empty", new_empty)
        yield guarded
    guarded.check()
