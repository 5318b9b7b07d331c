"""Normalization over the last dimension."""

from __future__ import annotations

from typing import Protocol

import torch

from quire.kernels.ops import Ops


class Norm(Protocol):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., D] -> [..., D]."""


class RMSNorm:
    """Zhang and Sennrich 2019."""

    __slots__ = ("eps", "ops", "weight")

    def __init__(self, ops: Ops, weight: torch.Tensor, eps: float) -> None:
        self.ops = ops
        self.weight = weight
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.ops.rms_norm(x, self.weight, self.eps)


class LayerNorm:
    """Ba et al. 2016."""

    __slots__ = ("bias", "eps", "ops", "weight")

    def __init__(self, ops: Ops, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> None:
        self.ops = ops
        self.weight = weight
        self.bias = bias
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.ops.layer_norm(x, self.weight, self.bias, self.eps)
