"""torch's tensors and the native kernels' arrays in the same memory."""

from __future__ import annotations

import numpy as np
import torch

from quire.kernels.array import Array
from quire.kernels.dtype import DType, dtype_of


def as_torch(array: Array) -> torch.Tensor:
    tensor = torch.from_numpy(array.stored)
    return tensor.view(torch.bfloat16) if array.dtype == DType.BFLOAT16 else tensor


def as_array(tensor: torch.Tensor) -> Array:
    dtype = dtype_of(tensor.dtype)
    stored = tensor.detach().view(torch.int16).numpy().view(np.uint16) if dtype == DType.BFLOAT16 else tensor.numpy()
    return Array(stored, dtype)
