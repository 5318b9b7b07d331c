"""A rotation of rows under which none of their values is far larger than the others (csrc/rotation.h does the same to activations).

Of a weight's rows and of those that it is multiplied by it leaves the products what they were, and 8 bits with one scale a row are
enough for both (QuaRot: Ashkboos et al. 2024).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

NEIGHBOURS, STRIDE = 4, 16
"""Of neighbours only four meet: but for that the kernel works between its registers, not within them."""
HADAMARD = np.array([[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]]) / 2
"""Of neighbours."""
RADICES = (4, 6, 3, 5, 7)
"""How many values may meet in a stage, in this order. A lone factor 2, and larger ones, are left out."""


def rotation_stages(num_inputs: int) -> Iterator[tuple[int, int]]:
    """How many values meet in each stage after the neighbours', and how far apart they are. `num_inputs` is a multiple of STRIDE."""
    stride, left = STRIDE, num_inputs // STRIDE
    while radix := next((radix for radix in RADICES if left % radix == 0), None):
        yield radix, stride
        stride, left = stride * radix, left // radix


def rotated(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """[R, K] -> [R, K], of the same type: orthogonal and its own inverse. Each stage but the neighbours' is a reflection, with its sign
    changed, which takes 2 / n of their sum from n values."""
    rows = rows.reshape(len(rows), -1, NEIGHBOURS) @ HADAMARD.astype(rows.dtype)
    rows = rows.reshape(len(rows), -1)
    for radix, stride in rotation_stages(rows.shape[1]):
        values = rows.reshape(len(rows), -1, radix, stride)
        share = values.sum(2, keepdims=True) * np.float32(2 / radix)
        rows = (share - values).reshape(rows.shape)
    return rows
