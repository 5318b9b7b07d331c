"""A rotation of rows under which none of their values is far larger than the others: the twin, in numpy, of csrc/rotation.cpp.

Of a weight's rows and of those that it is multiplied by it leaves the products what they were, and 8 bits with one scale a row are
enough for both (QuaRot: Ashkboos et al. 2024).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

NEIGHBOURS, STRIDE = 4, 16
"""Of neighbours only four meet: but for that the kernel works between its registers, not within them."""
HADAMARD = np.array([[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]]) / 2
"""Of neighbours."""
RADICES = (4, 6, 3, 5, 7)
"""How many values may meet in a stage, in this order. A lone factor 2 is left out."""
FEW_PARTS = 2
"""Of a row may stay apart. More, of a factor of 11 or above, meet in windows."""


def rotation_stages(num_inputs: int) -> Iterator[tuple[int, int]]:
    """How many values meet in each stage after the neighbours', and how far apart they are. `num_inputs` is a multiple of STRIDE."""
    stride, left = STRIDE, num_inputs // STRIDE
    while radix := next((radix for radix in RADICES if left % radix == 0), None):
        yield radix, stride
        stride, left = stride * radix, left // radix


@dataclass(frozen=True, slots=True)
class Windows:
    """`count` of them, in each of which 4 times `radix` parts meet; the last one reaches back over the one before."""

    radix: int
    parts: int
    stride: int

    @property
    def size(self) -> int:
        return 4 * self.radix

    @property
    def count(self) -> int:
        return -(-self.parts // self.size)

    @property
    def firsts(self) -> list[int]:
        return [min(i * self.size, self.parts - self.size) for i in range(self.count)]

    @property
    def met_twice(self) -> float:
        """How much of a window: what meets twice is partly as it was before."""
        return (self.count * self.size - self.parts) / self.size


def windows_of(num_inputs: int) -> Windows | None:
    """For what the stages leave apart; None where that is little."""
    parts = num_inputs // STRIDE // math.prod(radix for radix, _ in rotation_stages(num_inputs))
    if parts <= FEW_PARTS:
        return None
    possible = [Windows(radix, parts, num_inputs // parts) for radix in (4, 3, 5, 6, 7, 1) if 4 * radix <= parts]
    return min(possible, key=lambda windows: windows.met_twice)


def rotated(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """[R, K] -> [R, K], of the same type: orthogonal. Each stage but the neighbours' is a reflection, with its sign changed, which takes
    2 / n of their sum from n values. Without windows it is its own inverse."""
    return _in_stages(_in_windows(rows, back=False))


def rotated_back(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """What was rotated, as it was."""
    return _in_windows(_in_stages(rows), back=True)


def _in_stages(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    num_inputs = rows.shape[1]
    rows = rows.reshape(len(rows), -1, NEIGHBOURS) @ HADAMARD.astype(rows.dtype)
    rows = rows.reshape(len(rows), num_inputs)
    for radix, stride in rotation_stages(num_inputs):
        rows = _met(rows, radix, stride)
    return rows


def _in_windows(rows: npt.NDArray[Any], *, back: bool) -> npt.NDArray[Any]:
    windows = windows_of(rows.shape[1])
    if windows is None:
        return rows
    rows = rows.copy()
    for first in windows.firsts[:: -1 if back else 1]:
        window = rows[:, first * windows.stride : (first + windows.size) * windows.stride]
        window[:] = _met(window, 4, windows.stride)
        if windows.radix > 1:
            window[:] = _met(window, windows.radix, windows.stride * 4)
    return rows


def _met(rows: npt.NDArray[Any], radix: int, stride: int) -> npt.NDArray[Any]:
    """`radix` values, `stride` apart, after a reflection."""
    values = rows.reshape(len(rows), -1, radix, stride)
    share = values.sum(2, keepdims=True) * np.float32(2 / radix)
    met: npt.NDArray[Any] = (share - values).reshape(rows.shape)
    return met
