"""torch's tensors, made as `Tensors` asks."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from quire.kernels.fresh_memory import fresh_memory
from quire.kernels.tensor import Numbers, Plan, Result

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "int8": torch.int8}


class TorchTensors:
    def dtype(self, name: str) -> torch.dtype:
        return DTYPES[name]

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype)

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype, *, touched: bool = False) -> torch.Tensor:
        num_bytes = math.prod(shape) * dtype.itemsize
        numbers = np.frombuffer(fresh_memory(num_bytes, touched=touched), np.uint8, num_bytes)
        return torch.from_numpy(numbers.reshape(*shape[:-1], -1)).view(dtype)

    def of(self, numbers: Numbers) -> torch.Tensor:
        return torch.from_numpy(numbers)

    def copy(self, destination: torch.Tensor, numbers: Numbers, dtype: str) -> None:
        # A view of a file cannot be written, and torch has only writable memory: such chunks are copied.
        values = torch.from_numpy(numbers if numbers.flags.writeable else numbers.copy())
        destination.copy_(values.view(torch.bfloat16) if dtype == "bfloat16" else values)

    def numbers(self, tensor: torch.Tensor) -> npt.NDArray[np.float32]:
        numbers: npt.NDArray[np.float32] = tensor.float().cpu().numpy()
        return numbers

    def computing(self, step: Callable[[Plan], Result]) -> Callable[[Plan], Result]:
        inferring: Callable[[Plan], Result] = torch.inference_mode()(step)
        return inferring
