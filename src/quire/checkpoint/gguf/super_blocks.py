"""The K types: super-blocks of 256 values, cut into sub-blocks of 16 or 32 whose scales are themselves quantized.

A value is d * scale * q, less dmin * minimum where the type has minima. The layouts and formulas are GGML's
(ggml-quants.c); the order of the float32 operations is part of them, so results agree bit for bit.

Shapes: N super-blocks, S sub-blocks of V values each (S * V = 256).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Blocks = npt.NDArray[Any]
Values = npt.NDArray[np.float32]
"""[N, 256]"""
Bits = npt.NDArray[np.uint8]

Q2_K = np.dtype([("scales", "u1", 16), ("qs", "u1", 64), ("d", "<f2"), ("dmin", "<f2")])
Q3_K = np.dtype([("qh", "u1", 32), ("qs", "u1", 64), ("scales", "u1", 12), ("d", "<f2")])
Q4_K = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qs", "u1", 128)])
Q5_K = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qh", "u1", 32), ("qs", "u1", 128)])
Q6_K = np.dtype([("qs", "u1", 128), ("qh", "u1", 64), ("scales", "i1", 16), ("d", "<f2")])


def dequantize_q2_k(blocks: Blocks) -> Values:
    """Two bits a value; a byte of `scales` holds a sub-block's scale (low half) and minimum (high half)."""
    quants = unpack_bits(blocks["qs"], bits=2, run=32)
    scales = blocks["scales"]
    return _combine(blocks, scales & np.uint8(0x0F), quants, minima=scales >> np.uint8(4))


def dequantize_q3_k(blocks: Blocks) -> Values:
    """Three bits a value, of which the third is kept apart and means: do not subtract 4."""
    low = unpack_bits(blocks["qs"], bits=2, run=32)
    high = unpack_bits(blocks["qh"], bits=1, run=32)
    quants = (low | (high << np.uint8(2))).astype(np.int8) - np.int8(4)
    return _combine(blocks, _scales_of_q3_k(blocks["scales"]), quants)


def dequantize_q4_k(blocks: Blocks) -> Values:
    """Four bits a value, eight sub-blocks with scales and minima."""
    scales, minima = scales_and_minima(blocks["scales"])
    return _combine(blocks, scales, unpack_bits(blocks["qs"], bits=4, run=32), minima=minima)


def dequantize_q5_k(blocks: Blocks) -> Values:
    """As Q4_K, with a fifth bit kept apart."""
    scales, minima = scales_and_minima(blocks["scales"])
    quants = unpack_bits(blocks["qs"], bits=4, run=32) | (unpack_bits(blocks["qh"], bits=1, run=32) << np.uint8(4))
    return _combine(blocks, scales, quants, minima=minima)


def dequantize_q6_k(blocks: Blocks) -> Values:
    """Six bits a value, of which two are kept apart, less 32; sixteen signed one-byte scales."""
    quants = unpack_bits(blocks["qs"], bits=4, run=64) | (unpack_bits(blocks["qh"], bits=2, run=32) << np.uint8(4))
    return _combine(blocks, blocks["scales"], quants.astype(np.int8) - np.int8(32))


def _combine(blocks: Blocks, scales: Blocks, quants: Blocks, *, minima: Bits | None = None) -> Values:
    """d * scale * q - dmin * minimum, with `scales` and `minima` [N, S] and `quants` [N, 256]."""
    num_blocks, num_sub_blocks = scales.shape
    scale = blocks["d"].astype(np.float32)[:, None] * scales.astype(np.float32)
    values = quants.astype(np.float32).reshape(num_blocks, num_sub_blocks, -1)
    values *= scale[:, :, None]
    if minima is not None:
        minimum = blocks["dmin"].astype(np.float32)[:, None] * minima.astype(np.float32)
        values -= minimum[:, :, None]
    return values.reshape(num_blocks, 256)


def unpack_bits(packed: Bits, *, bits: int, run: int) -> Bits:
    """Values of `bits` bits, [N, 8 / bits * len(packed[0])].

    Bytes come in runs: a run's lowest bits give `run` values in a row, the next bits the following `run`, and so on.
    """
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    runs = packed.reshape(len(packed), -1, 1, run)
    values = (runs >> shifts[:, None]) & np.uint8((1 << bits) - 1)
    return values.reshape(len(packed), -1)


def _scales_of_q3_k(packed: Bits) -> npt.NDArray[np.int8]:
    """Sixteen six-bit scales in 12 bytes, less 32: the low four bits in the first 8 bytes, the high two in the last 4."""
    low = unpack_bits(packed[:, :8], bits=4, run=8)
    high = unpack_bits(packed[:, 8:], bits=2, run=4)
    return (low | (high << np.uint8(4))).astype(np.int8) - np.int8(32)


def scales_and_minima(packed: Bits) -> tuple[Bits, Bits]:
    """Eight six-bit scales and eight six-bit minima in 12 bytes.

    Bytes 0 to 3 hold the first four scales and bytes 4 to 7 the first four minima, in their low six bits. Bytes 8
    to 11 hold the low four bits of the other scales (low halves) and minima (high halves), whose high two bits are
    the top bits of bytes 0 to 7.
    """
    first, rest = packed[:, :8], packed[:, 8:]
    six_bits, top = first & np.uint8(0x3F), (first >> np.uint8(6)) << np.uint8(4)
    scales = np.concatenate([six_bits[:, :4], (rest & np.uint8(0x0F)) | top[:, :4]], axis=1)
    minima = np.concatenate([six_bits[:, 4:], (rest >> np.uint8(4)) | top[:, 4:]], axis=1)
    return scales, minima
