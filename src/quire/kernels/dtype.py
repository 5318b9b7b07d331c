"""The dtypes of tensors, named without torch."""

from __future__ import annotations

from enum import StrEnum
from functools import cache
from typing import Any

import numpy as np


class DType(StrEnum):
    """Named as torch names them."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    INT64 = "int64"
    UINT8 = "uint8"
    INT8 = "int8"

    @property
    def stored(self) -> np.dtype[Any]:
        """numpy's type of the same size; of a bfloat16, that of its bits."""
        return _STORED[self]

    @property
    def itemsize(self) -> int:
        return _STORED[self].itemsize


_STORED = {dtype: np.dtype("uint16" if dtype == DType.BFLOAT16 else dtype.value) for dtype in DType}
OF_NUMPY = {stored: dtype for dtype, stored in _STORED.items() if dtype != DType.BFLOAT16}
"""By numpy's."""


@cache
def dtype_of(dtype: Any) -> DType:
    """torch's dtypes and ours, as ours."""
    return dtype if isinstance(dtype, DType) else DType(str(dtype).removeprefix("torch."))


NATIVE_DTYPES = frozenset({DType.FLOAT32, DType.BFLOAT16})
"""Those that the native kernels compute in."""


def is_bfloat16(x: Any) -> bool:
    """Of a tensor of either kind. Raises AssertionError for a dtype without kernels."""
    dtype = dtype_of(x.dtype)
    assert dtype in NATIVE_DTYPES, dtype
    return dtype == DType.BFLOAT16
