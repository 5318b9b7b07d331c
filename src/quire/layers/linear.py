"""A linear layer: x @ weight.T + bias, however the weight is kept."""

from __future__ import annotations

from typing import Any

from quire.kernels.tensor import Normalized, Tensor
from quire.layers.norm import Norm, RMSNorm
from quire.quantization.method import QuantMethod


class Linear:
    """`weight` is what the method's `load` returned.

    Of a norm that comes before it the layer takes care: some kernels normalize rows while they read them.
    """

    __slots__ = ("bias", "method", "weight")

    def __init__(self, method: QuantMethod, weight: Any, bias: Tensor | None) -> None:
        self.method = method
        self.weight = weight
        self.bias = bias

    def forward(self, x: Tensor, norm: Norm | None = None, residual: Tensor | None = None) -> Tensor:
        """[T, num_inputs] -> [T, num_outputs], of `norm` of x, added to `residual`, which is given up: the result may be in its
        memory."""
        y: Tensor = self.method.apply(self._rows(x, norm), self.weight, self.bias, residual)
        return y

    def forward_gated(self, x: Tensor, kind: str, norm: Norm | None = None) -> Tensor:
        """activation(the first half of the outputs) * the second [T, num_outputs / 2], of `norm` of x; `kind` as Ops.gated's."""
        y: Tensor = self.method.apply_gated(self._rows(x, norm), self.weight, self.bias, kind)
        return y

    def _rows(self, x: Tensor, norm: Norm | None) -> Tensor | Normalized:
        if norm is None:
            return x
        if isinstance(norm, RMSNorm) and self.method.normalizes(self.weight):
            return norm.deferred(x)
        return norm.forward(x)
