"""torch's operators on the native kernels' arrays, in the same memory: for what has no kernel yet."""

from __future__ import annotations

import numpy as np
import torch

from quire.kernels.array import Array
from quire.kernels.dtype import DType, dtype_of
from quire.kernels.torch_ops import TorchOps


class TorchOnArrays:
    def __init__(self) -> None:
        self._ops = TorchOps()

    def linear(self, x: Array, weight: Array, bias: Array | None) -> Array:
        return as_array(self._ops.linear(as_torch(x), as_torch(weight), None if bias is None else as_torch(bias)))

    def logits(self, x: Array, weight: Array) -> Array:
        return as_array(self._ops.logits(as_torch(x), as_torch(weight)))


def as_torch(array: Array) -> torch.Tensor:
    """In the same memory."""
    tensor = torch.from_numpy(array.stored)
    return tensor.view(torch.bfloat16) if array.dtype == DType.BFLOAT16 else tensor


def as_array(tensor: torch.Tensor) -> Array:
    """In the same memory."""
    dtype = dtype_of(tensor.dtype)
    stored = tensor.detach().view(torch.int16).numpy().view(np.uint16) if dtype == DType.BFLOAT16 else tensor.numpy()
    return Array(stored, dtype)
