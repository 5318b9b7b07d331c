"""Tensor types that are a number format rather than blocks of quantized values: one value a block."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

F32 = np.dtype("<f4")
F16 = np.dtype("<f2")
BF16 = np.dtype("<u2")
"""The upper half of a float32."""


def dequantize_f32(values: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    return values[:, None]


def dequantize_f16(values: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    return values.astype(np.float32)[:, None]


def dequantize_bf16(values: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    bits = values.astype(np.uint32) << np.uint32(16)
    return bits.view(np.float32)[:, None]
