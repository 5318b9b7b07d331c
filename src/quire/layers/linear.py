"""A linear layer: x @ weight.T + bias, however the weight is kept."""

from __future__ import annotations

from typing import Any

from quire.kernels.tensor import Tensor
from quire.quantization.method import QuantMethod


class Linear:
    """`weight` is what the method's `load` returned."""

    __slots__ = ("bias", "method", "weight")

    def __init__(self, method: QuantMethod, weight: Any, bias: Tensor | None) -> None:
        self.method = method
        self.weight = weight
        self.bias = bias

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """[T, num_inputs] -> [T, num_outputs], added to `residual`, which is given up: the result may be in its memory."""
        y: Tensor = self.method.apply(x, self.weight, self.bias, residual)
        return y

    def forward_gated(self, x: Tensor, kind: str) -> Tensor:
        """activation(the first half of the outputs) * the second [T, num_outputs / 2]; `kind` as Ops.gated's."""
        y: Tensor = self.method.apply_gated(x, self.weight, self.bias, kind)
        return y
