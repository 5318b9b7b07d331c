"""Tensors as a checkpoint would hand them out, from memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from quire.checkpoint.gguf.block_codes import BlockRows
from quire.kernels.array import Array, Arrays
from quire.kernels.torch_tensors import TorchTensors


@dataclass(frozen=True)
class FloatWeight:
    """A StoredWeight of floats."""

    values: torch.Tensor

    name: str = "weight"
    inputs_rotated: bool = False

    @property
    def num_outputs(self) -> int:
        return self.values.shape[0]

    @property
    def num_inputs(self) -> int:
        return self.values.shape[1]

    def pass_over(self) -> None:
        raise AssertionError("it is to be read")

    def fill(self, destination: Any) -> None:
        tensors = Arrays() if isinstance(destination, Array) else TorchTensors()
        tensors.copy(destination, self.values.float().numpy(), "float32")

    def floats(self, num_rows: int) -> Iterator[npt.NDArray[np.float32]]:
        for first in range(0, self.num_outputs, num_rows):
            yield self.values[first : first + num_rows].float().numpy()

    def blocks(self, fill: Callable[[BlockRows], bool]) -> bool:
        return False


@dataclass(frozen=True)
class CodedWeight:
    """A StoredWeight of few bits."""

    stored: BlockRows

    name: str = "weight"
    inputs_rotated: bool = False

    @property
    def num_outputs(self) -> int:
        return len(self.stored.rows)

    @property
    def num_inputs(self) -> int:
        return self.stored.num_inputs

    def pass_over(self) -> None:
        raise AssertionError("it is to be read")

    def fill(self, destination: Any) -> None:
        raise AssertionError("it is read as it is stored")

    def floats(self, num_rows: int) -> Iterator[npt.NDArray[np.float32]]:
        raise AssertionError("it is read as it is stored")

    def blocks(self, fill: Callable[[BlockRows], bool]) -> bool:
        return fill(self.stored)
