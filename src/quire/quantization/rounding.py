"""Weights rounded to 4 or 8 bits: a scale for each group of inputs of each output, and with 4 bits a minimum too."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from quire.checkpoint.quantized import QuantizedRows

GROUP_SIZE = 32
ZERO_OF_8_BITS = 128
SHARES_OF_THE_RANGE = (1.0, 0.95, 0.9, 0.85)
"""Tried for 4 bits: a few values beyond the ends may cost less than coarser steps for all others."""

Floats = npt.NDArray[np.float32]


def round_rows(rows: Floats, bits: int) -> QuantizedRows:
    """float32 [R, K], K a multiple of GROUP_SIZE; `bits` is 4 or 8."""
    groups = rows.reshape(len(rows), -1, GROUP_SIZE)
    return _to_8_bits(groups) if bits == 8 else _to_4_bits(groups)


def _to_8_bits(groups: Floats) -> QuantizedRows:
    scale = (np.abs(groups).max(-1) / 127).astype(np.float16)
    codes = np.clip(np.rint(groups * _inverse(scale)), -127, 127) + ZERO_OF_8_BITS
    return _rows(codes, bits=8, zero=ZERO_OF_8_BITS, scale=scale)


def _to_4_bits(groups: Floats) -> QuantizedRows:
    """Of several ranges around each group's middle the one with the least squared error."""
    low, high = groups.min(-1), groups.max(-1)
    middle, half = (low + high) / 2, (high - low) / 2
    best_error = np.full(low.shape, np.inf, np.float32)
    scale, minimum = np.zeros(low.shape, np.float16), np.zeros(low.shape, np.float16)
    codes = np.zeros(groups.shape, np.float32)
    for share in SHARES_OF_THE_RANGE:
        tried_scale = (2 * share * half / 15).astype(np.float16)
        tried_minimum = (middle - share * half).astype(np.float16)
        offset = tried_minimum.astype(np.float32)[..., None]
        tried = np.clip(np.rint((groups - offset) * _inverse(tried_scale)), 0, 15)
        error = np.square(tried * tried_scale.astype(np.float32)[..., None] + offset - groups).sum(-1)
        better = error < best_error
        best_error = np.where(better, error, best_error)
        scale, minimum = np.where(better, tried_scale, scale), np.where(better, tried_minimum, minimum)
        codes = np.where(better[..., None], tried, codes)
    return _rows(codes, bits=4, zero=0, scale=scale, minimum=minimum)


def _inverse(scale: npt.NDArray[np.float16]) -> Floats:
    """[R, G] -> [R, G, 1]; of zero, zero: all of the group is as good as nothing."""
    whole = scale.astype(np.float32)[..., None]
    return np.divide(1, whole, out=np.zeros_like(whole), where=whole > 0)


def _rows(
    codes: Floats,
    *,
    bits: int,
    zero: int,
    scale: npt.NDArray[np.float16],
    minimum: npt.NDArray[np.float16] | None = None,
) -> QuantizedRows:
    return QuantizedRows(
        bits=bits,
        zero=zero,
        group_size=GROUP_SIZE,
        groups_per_block=1,
        codes=codes.astype(np.uint8).reshape(len(codes), -1),
        scale=scale,
        minimum=minimum,
    )
