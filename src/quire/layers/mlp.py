"""Feed-forward layers. D hidden_size, I intermediate_size, T tokens."""

from __future__ import annotations

from typing import Protocol

from quire.kernels.ops import Ops
from quire.kernels.tensor import Tensor
from quire.layers.linear import Linear
from quire.layers.norm import Norm


class FeedForward(Protocol):
    def forward(self, x: Tensor, norm: Norm | None = None, residual: Tensor | None = None) -> Tensor:
        """[T, D] -> [T, D], of `norm` of x, added to `residual`, which is given up (as Linear's)."""


class GatedMLP:
    """down(act(gate(x)) * up(x)) (Shazeer 2020); gate and up are one linear layer of 2 I outputs."""

    __slots__ = ("activation", "down", "gate_up")

    def __init__(self, activation: str, gate_up: Linear, down: Linear) -> None:
        self.activation = activation
        self.gate_up = gate_up
        self.down = down

    def forward(self, x: Tensor, norm: Norm | None = None, residual: Tensor | None = None) -> Tensor:
        return self.down.forward(self.gate_up.forward_gated(x, self.activation, norm), residual=residual)


class MLP:
    """down(act(up(x)))."""

    __slots__ = ("activation", "down", "ops", "up")

    def __init__(self, ops: Ops, activation: str, up: Linear, down: Linear) -> None:
        self.ops = ops
        self.activation = activation
        self.up = up
        self.down = down

    def forward(self, x: Tensor, norm: Norm | None = None, residual: Tensor | None = None) -> Tensor:
        return self.down.forward(self.ops.activate(self.up.forward(x, norm), self.activation), residual=residual)
