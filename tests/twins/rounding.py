"""Weights rounded to 4 or 8 bits, a scale for each group of inputs of each output, and perhaps a minimum.

The twin, in numpy, of csrc/rounding.cpp, whose sums have the same order but where rows are rotated.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from tests.twins.quantized_rows import QuantizedRows
from tests.twins.rotation import rotated

from quire.core.quantization import Rounding

SHARES_OF_THE_RANGE = (1.0, 0.95, 0.9, 0.85)
"""Tried for 4 bits: a few values beyond the ends may cost less than coarser steps for all others."""

LANES = 16

Floats = npt.NDArray[np.float32]
Halves = npt.NDArray[np.float16]


def round_rows(rows: Floats, rounding: Rounding, group_size: int, *, inputs_rotated: bool = False) -> QuantizedRows:
    """float32 [R, K], K a multiple of `group_size`; with 8 bits there is no minimum. `inputs_rotated`: as they come, rows are rotated."""
    rotates = rounding.rotates(rows.shape[1], group_size)
    groups = (rotated(rows) if rotates and not inputs_rotated else rows).reshape(len(rows), -1, group_size)
    if rounding.bits == 8:
        codes, scale, minimum = *_to_8_bits(groups), None
    elif rounding.has_minimum:
        codes, scale, minimum = _to_4_bits(groups)
    else:
        codes, scale, minimum = *_to_symmetric_4_bits(groups), None
    return QuantizedRows(
        bits=rounding.bits,
        zero=rounding.zero,
        group_size=group_size,
        groups_per_block=1,
        codes=codes.astype(np.uint8).reshape(len(codes), -1),
        scale=scale,
        minimum=minimum,
        rotated=rotates,
        inputs_rotated=inputs_rotated,
    )


def _to_8_bits(groups: Floats) -> tuple[Floats, Halves]:
    scale = (np.abs(groups).max(-1) / 127).astype(np.float16)
    return np.clip(np.rint(groups * _inverse(scale)), -127, 127) + 128, scale


def _to_4_bits(groups: Floats) -> tuple[Floats, Halves, Halves]:
    """Of several ranges around each group's middle the one with the least squared error."""
    low, high = groups.min(-1), groups.max(-1)
    middle, half = (low + high) / 2, (high - low) / 2
    best = _Best(groups)
    for share in SHARES_OF_THE_RANGE:
        scale = (2 * share * half / 15).astype(np.float16)
        best.offer(scale, minimum=(middle - share * half).astype(np.float16), lowest=0, highest=15)
    return best.codes, best.scale, best.minimum


def _to_symmetric_4_bits(groups: Floats) -> tuple[Floats, Halves]:
    """Codes from -8 to 7: of several scales of either sign the one with the least squared error."""
    places = np.abs(groups).argmax(-1, keepdims=True)
    extreme = np.take_along_axis(groups, places, -1)[..., 0]
    best = _Best(groups)
    zero = np.zeros(extreme.shape, np.float16)
    for share in SHARES_OF_THE_RANGE:
        for end in (-8, 7):
            best.offer((share * extreme / end).astype(np.float16), minimum=zero, lowest=-8, highest=7)
    return best.codes + 8, best.scale


class _Best:
    """The codes of each group with the least squared error of all that were offered. Groups: [R, G, size]."""

    def __init__(self, groups: Floats) -> None:
        self._groups = groups
        self._error = np.full(groups.shape[:-1], np.inf, np.float32)
        self.scale, self.minimum = np.zeros(groups.shape[:-1], np.float16), np.zeros(groups.shape[:-1], np.float16)
        self.codes = np.zeros(groups.shape, np.float32)

    def offer(self, scale: Halves, *, minimum: Halves, lowest: int, highest: int) -> None:
        offset = minimum.astype(np.float32)[..., None]
        codes = np.clip(np.rint((self._groups - offset) * _inverse(scale)), lowest, highest)
        error = _sums(np.square(codes * scale.astype(np.float32)[..., None] + offset - self._groups))
        better = error < self._error
        self._error = np.where(better, error, self._error)
        self.scale, self.minimum = np.where(better, scale, self.scale), np.where(better, minimum, self.minimum)
        self.codes = np.where(better[..., None], codes, self.codes)


def _sums(values: Floats) -> Floats:
    """[R, G, size] -> [R, G]: by lanes of 16, which are then folded by halves."""
    lanes = values.reshape(*values.shape[:-1], -1, LANES)
    sums = lanes[..., 0, :]
    for i in range(1, lanes.shape[-2]):
        sums = sums + lanes[..., i, :]
    while sums.shape[-1] > 1:
        half = sums.shape[-1] // 2
        sums = sums[..., :half] + sums[..., half:]
    return sums[..., 0]


def _inverse(scale: Halves) -> Floats:
    """[R, G] -> [R, G, 1]; of zero, zero: all of the group is as good as nothing."""
    whole = scale.astype(np.float32)[..., None]
    return np.divide(1, whole, out=np.zeros_like(whole), where=whole != 0)
