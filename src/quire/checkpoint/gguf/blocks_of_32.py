"""Quantized types with blocks of 32 values: a float16 scale `d`, perhaps a minimum `m`, and an integer q a value.

The layouts and formulas are GGML's (ggml-quants.c); the order of the float32 operations is part of them, so results
agree bit for bit. Two four-bit values share a byte: the low halves hold values 0 to 15, the high halves 16 to 31.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Blocks = npt.NDArray[Any]
Values = npt.NDArray[np.float32]
"""[num_blocks, 32]"""

Q4_0 = np.dtype([("d", "<f2"), ("qs", "u1", 16)])
Q4_1 = np.dtype([("d", "<f2"), ("m", "<f2"), ("qs", "u1", 16)])
Q5_0 = np.dtype([("d", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)])
Q5_1 = np.dtype([("d", "<f2"), ("m", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)])
Q8_0 = np.dtype([("d", "<f2"), ("qs", "i1", 32)])
IQ4_NL = Q4_0

IQ4_NL_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
"""What the sixteen codes of IQ4_NL stand for: spaced as normally distributed weights want, not evenly."""


def dequantize_q4_0(blocks: Blocks) -> Values:
    """d * (q - 8)"""
    return _scale(blocks) * (four_bits(blocks).astype(np.float32) - np.float32(8))


def dequantize_q4_1(blocks: Blocks) -> Values:
    """d * q + m"""
    return _scale(blocks) * four_bits(blocks).astype(np.float32) + _minimum(blocks)


def dequantize_q5_0(blocks: Blocks) -> Values:
    """d * (q - 16)"""
    return _scale(blocks) * (five_bits(blocks).astype(np.float32) - np.float32(16))


def dequantize_q5_1(blocks: Blocks) -> Values:
    """d * q + m"""
    return _scale(blocks) * five_bits(blocks).astype(np.float32) + _minimum(blocks)


def dequantize_q8_0(blocks: Blocks) -> Values:
    """d * q"""
    return _scale(blocks) * blocks["qs"].astype(np.float32)


def dequantize_iq4_nl(blocks: Blocks) -> Values:
    """d * table[q]"""
    return _scale(blocks) * IQ4_NL_VALUES[four_bits(blocks)]


def _scale(blocks: Blocks) -> Values:
    scale: Values = blocks["d"].astype(np.float32)[:, None]
    return scale


def _minimum(blocks: Blocks) -> Values:
    minimum: Values = blocks["m"].astype(np.float32)[:, None]
    return minimum


def four_bits(blocks: Blocks) -> npt.NDArray[np.uint8]:
    packed = blocks["qs"]
    return np.concatenate([packed & np.uint8(0x0F), packed >> np.uint8(4)], axis=1)


def five_bits(blocks: Blocks) -> npt.NDArray[np.uint8]:
    """The fifth bits of the 32 values lie together in `qh`, value 0's first."""
    fifth = np.unpackbits(blocks["qh"], axis=1, bitorder="little")
    return four_bits(blocks) | (fifth << np.uint8(4))
