"""Normalization over the last dimension."""

from __future__ import annotations

from typing import Any, Protocol

from quire.kernels.ops import Ops
from quire.kernels.tensor import Normalized, Tensor


class Norm(Protocol):
    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """[..., D] -> [..., D]; of [T, D] added to `residual`, which is given up (as Linear's)."""


class RMSNorm:
    """Zhang and Sennrich 2019."""

    __slots__ = ("_float32_weight", "eps", "ops", "weight")

    def __init__(self, ops: Ops, weight: Any, eps: float) -> None:
        self.ops = ops
        self.weight = weight
        self.eps = eps
        self._float32_weight: Any = None

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        y: Tensor = self.ops.rms_norm(x, self.weight, self.eps, residual)
        return y

    def deferred(self, x: Tensor) -> Normalized:
        """The same, of [T, D], by whoever reads it."""
        if self._float32_weight is None:
            tensors = self.ops.tensors
            self._float32_weight = tensors.of(tensors.numbers(self.weight))
        return Normalized(x, self._float32_weight, self.eps)


class LayerNorm:
    """Ba et al. 2016."""

    __slots__ = ("bias", "eps", "ops", "weight")

    def __init__(self, ops: Ops, weight: Any, bias: Any, eps: float) -> None:
        self.ops = ops
        self.weight = weight
        self.bias = bias
        self.eps = eps

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        y: Tensor = self.ops.layer_norm(x, self.weight, self.bias, self.eps)
        return y if residual is None else residual + y
