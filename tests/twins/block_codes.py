"""GGUF's blocks as integers and their scales, nothing rounded: with panels.py the twin, in numpy, of csrc/packing.cpp."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from tests.twins.quantized_rows import QuantizedRows

from quire.checkpoint.gguf.block_codes import CODE_TYPES
from quire.checkpoint.gguf.blocks_of_32 import five_bits, four_bits
from quire.checkpoint.gguf.super_blocks import scales_and_minima, unpack_bits

Blocks = npt.NDArray[Any]


def rows_of_blocks(name: str, blocks: Blocks) -> QuantizedRows:
    """[R, blocks a row] of one of CODE_TYPES -> R rows."""
    code_type, num_rows = CODE_TYPES[name], blocks.shape[0]
    fields = {field: part.reshape(num_rows, -1) for field, part in READERS[name](blocks.reshape(-1)).items()}
    return QuantizedRows(
        bits=code_type.bits,
        zero=code_type.zero,
        group_size=code_type.group_size,
        groups_per_block=code_type.groups_per_block,
        rotated=False,
        inputs_rotated=False,
        **fields,
    )


def _q4_0(blocks: Blocks) -> dict[str, npt.NDArray[Any]]:
    return {"codes": four_bits(blocks), "scale": blocks["d"]}


def _q4_1(blocks: Blocks) -> dict[str, npt.NDArray[Any]]:
    return {"codes": four_bits(blocks), "scale": blocks["d"], "minimum": blocks["m"]}


def _q5_0(blocks: Blocks) -> dict[str, npt.NDArray[Any]]:
    return {"codes": five_bits(blocks), "scale": blocks["d"]}


def _q5_1(blocks: Blocks) -> dict[str, npt.NDArray[Any]]:
    return {"codes": five_bits(blocks), "scale": blocks["d"], "minimum": blocks["m"]}


def _q8_0(blocks: Blocks) -> dict[str, npt.NDArray[Any]]:
    return {"codes": blocks["qs"].view(np.uint8) ^ np.uint8(0x80), "scale": blocks["d"]}


def _q4_k(blocks: Blocks) -> dict[str, npt.NDArray[Any]]:
    return {"codes": unpack_bits(blocks["qs"], bits=4, run=32), **_k_scales(blocks)}


def _q5_k(blocks: Blocks) -> dict[str, npt.NDArray[Any]]:
    codes = unpack_bits(blocks["qs"], bits=4, run=32) | (unpack_bits(blocks["qh"], bits=1, run=32) << np.uint8(4))
    return {"codes": codes, **_k_scales(blocks)}


def _q6_k(blocks: Blocks) -> dict[str, npt.NDArray[Any]]:
    codes = unpack_bits(blocks["qs"], bits=4, run=64) | (unpack_bits(blocks["qh"], bits=2, run=32) << np.uint8(4))
    return {"codes": codes, "scale": blocks["d"], "group_scale": blocks["scales"]}


def _k_scales(blocks: Blocks) -> dict[str, npt.NDArray[Any]]:
    scales, minima = scales_and_minima(blocks["scales"])
    return {
        "scale": blocks["d"],
        "minimum": -blocks["dmin"],
        "group_scale": scales.view(np.int8),
        "group_minimum": minima.view(np.int8),
    }


READERS = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
"""Of N blocks: `codes` [N, values], `scale` and perhaps `minimum` [N], those of groups [N, groups_per_block]."""
