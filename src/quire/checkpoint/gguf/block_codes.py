"""Blocks as integers and their scales, nothing rounded: for kernels that multiply in few bits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from quire.checkpoint.gguf.blocks_of_32 import five_bits, four_bits
from quire.checkpoint.gguf.super_blocks import scales_and_minima, unpack_bits
from quire.checkpoint.quantized import QuantizedRows

Blocks = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class CodeType:
    """How N blocks of one type become rows."""

    bits: int
    zero: int
    group_size: int
    groups_per_block: int
    has_minimum: bool
    read: Callable[[Blocks], dict[str, npt.NDArray[Any]]]
    """Of N blocks: `codes` [N, values], `scale` and perhaps `minimum` [N], those of groups [N, groups_per_block]."""

    @property
    def bytes_per_value(self) -> float:
        """Of a weight kept as codes and scales."""
        small = self.groups_per_block if self.groups_per_block > 1 else 0
        scales = (2 + small) * (2 if self.has_minimum else 1)
        return self.bits / 8 + scales / (self.group_size * self.groups_per_block)

    def rows(self, blocks: Blocks) -> QuantizedRows:
        """[R, blocks a row] -> R rows."""
        num_rows = blocks.shape[0]
        fields = {name: part.reshape(num_rows, -1) for name, part in self.read(blocks.reshape(-1)).items()}
        return QuantizedRows(
            bits=self.bits,
            zero=self.zero,
            group_size=self.group_size,
            groups_per_block=self.groups_per_block,
            rotated=False,
            inputs_rotated=False,
            **fields,
        )


@dataclass(frozen=True, slots=True)
class BlockRows:
    """R rows of a tensor, still in the blocks of the file."""

    type_name: str
    """Of CODE_TYPES."""
    num_inputs: int
    blocks: npt.NDArray[np.uint8]
    """[rows of the tensor, bytes of a row], a view of the file."""
    rows: npt.NDArray[np.int64]
    """[R], their places in it."""


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


CODE_TYPES = {
    "Q4_0": CodeType(4, 8, 32, 1, False, _q4_0),
    "Q4_1": CodeType(4, 0, 32, 1, True, _q4_1),
    "Q5_0": CodeType(8, 16, 32, 1, False, _q5_0),
    "Q5_1": CodeType(8, 0, 32, 1, True, _q5_1),
    "Q8_0": CodeType(8, 128, 32, 1, False, _q8_0),
    "Q4_K": CodeType(4, 0, 32, 8, True, _q4_k),
    "Q5_K": CodeType(8, 0, 32, 8, True, _q5_k),
    "Q6_K": CodeType(8, 32, 16, 16, False, _q6_k),
}
"""By the names of BLOCK_TYPES. The others are dequantized."""
