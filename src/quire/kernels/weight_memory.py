"""Memory for weights in pages of 2 MiB, where the system has them: a decoding step reads every weight, and with pages of
4 KiB the search for their addresses takes as long as the reading (docs/lab.md)."""

from __future__ import annotations

import math
import mmap
import threading
import weakref

import numpy as np

from quire.kernels.array import Array, empty_array
from quire.kernels.dtype import DType
from quire.kernels.fresh_memory import ask_for_large_pages, fresh_memory

LINE = 64
CHUNK = 64 << 20
"""Asked for at once. What no weight touches stays without memory."""


class WeightMemory:
    """Weights one after the other in chunks; a chunk is given back when the last of its weights is gone."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._chunk: weakref.ref[mmap.mmap] | None = None
        self._used = 0

    def empty(self, shape: tuple[int, ...], dtype: DType) -> Array:
        """Contiguous, on a cache line."""
        num_values = math.prod(shape)
        num_bytes = num_values * dtype.itemsize
        if num_bytes == 0:
            return empty_array(shape, dtype)
        with self._lock:
            chunk = None if self._chunk is None else self._chunk()
            if chunk is None or self._used + num_bytes > len(chunk):
                chunk = fresh_memory(max(CHUNK, num_bytes))
                ask_for_large_pages(chunk)
                self._chunk, self._used = weakref.ref(chunk), 0
            first = self._used
            self._used += -(-num_bytes // LINE) * LINE
        return Array(np.frombuffer(chunk, dtype.stored, num_values, first).reshape(shape), dtype)


_memory = WeightMemory()


def empty_weight(shape: tuple[int, ...], dtype: DType) -> Array:
    """Contiguous, on a cache line; what it holds is undefined."""
    return _memory.empty(shape, dtype)
