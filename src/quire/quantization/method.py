"""How the weight of a linear layer is kept and multiplied: the seam for quantized weights."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from quire.kernels.ops import Ops


class QuantMethod(Protocol):
    """One linear layer goes through the three steps in order; no other layer's weight is held in full meanwhile."""

    def create_weights(self, num_outputs: int, num_inputs: int, dtype: torch.dtype) -> torch.Tensor:
        """Memory [num_outputs, num_inputs] of the loading dtype; the loader fills it, row by row."""

    def process_after_loading(self, weight: torch.Tensor) -> Any:
        """What `apply` reads: the weight itself, or a packed or quantized form that replaces it."""

    def apply(self, x: torch.Tensor, weight: Any, bias: torch.Tensor | None) -> torch.Tensor:
        """x [T, num_inputs] -> [T, num_outputs]; `weight` is what `process_after_loading` returned."""


class Unquantized:
    """The weight stays as loaded."""

    def __init__(self, ops: Ops) -> None:
        self._linear = ops.linear

    def create_weights(self, num_outputs: int, num_inputs: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(num_outputs, num_inputs, dtype=dtype)

    def process_after_loading(self, weight: torch.Tensor) -> torch.Tensor:
        return weight

    def apply(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return self._linear(x, weight, bias)
