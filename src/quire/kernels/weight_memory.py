"""Memory for weights in pages of 2 MiB, where the system has them: a decoding step reads every weight, and with pages of
4 KiB the search for their addresses takes as long as the reading (docs/lab.md)."""

from __future__ import annotations

import math

from quire.kernels.array import Array, empty_array
from quire.kernels.dtype import DType
from quire.kernels.fresh_memory import LargePages

_pages = LargePages()


def empty_weight(shape: tuple[int, ...], dtype: DType) -> Array:
    """Contiguous, on a cache line; what it holds is undefined."""
    num_bytes = math.prod(shape) * dtype.itemsize
    if num_bytes == 0:
        return empty_array(shape, dtype)
    return Array(_pages.take(num_bytes).view(dtype.stored).reshape(shape), dtype)
