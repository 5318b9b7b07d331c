"""What native kernels write into while a test runs: memory full of NaN, with guards around it that must stay."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from tests.kernels.torch_arrays import as_array

from quire.kernels import array, native_attention, native_linear, native_sketch, native_steps
from quire.kernels import panels as weight_panels
from quire.kernels.array import Array
from quire.kernels.dtype import DType
from quire.kernels.recording import current_recording
from quire.quantization import panels

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
    """`x.new_empty((2, 3))`, `empty_array` and `empty_weight`, which are how native functions take memory, give guarded memory."""
    guarded, real, of_torch = GuardedMemory(), array.empty_array, torch.Tensor.new_empty

    def empty_array(shape: tuple[int, ...], dtype: DType) -> Array:
        if current_recording() is not None:
            return real(shape, dtype)
        # Bytes, so that every dtype has a view of them.
        memory = guarded.empty((math.prod(shape) * dtype.itemsize,), torch.uint8)
        return Array(as_array(memory).stored.view(dtype.stored).reshape(shape), dtype)

    def new_empty(x: torch.Tensor, *size: Any, **options: Any) -> torch.Tensor:
        if options or isinstance(size[0], int):  # not as native functions do
            return of_torch(x, *size, **options)
        return guarded.empty(tuple(size[0]), x.dtype)

    with pytest.MonkeyPatch.context() as patch:
        for module in (array, native_attention, native_linear, native_sketch, native_steps, weight_panels, panels):
            patch.setattr(module, "empty_array", empty_array)
        for module in (native_linear, native_sketch, weight_panels):
            patch.setattr(module, "empty_weight", empty_array)
        patch.setattr(torch.Tensor, "new_empty", new_empty)
        yield guarded
    guarded.check()
