"""Rows of a table by index: token embeddings and learned positions."""

from __future__ import annotations

from quire.kernels.ops import Ops
from quire.kernels.tensor import Tensor
from quire.quantization.method import Table


class Embedding:
    __slots__ = ("table",)

    def __init__(self, table: Table) -> None:
        self.table = table

    def forward(self, indices: Tensor) -> Tensor:
        """int64 [T] -> [T, D]."""
        rows: Tensor = self.table.rows(indices)
        return rows


class Positions:
    """Of `weight` [P, D], floats."""

    __slots__ = ("ops", "weight")

    def __init__(self, ops: Ops, weight: Tensor) -> None:
        self.ops = ops
        self.weight = weight

    def forward(self, indices: Tensor) -> Tensor:
        """int64 [T] -> [T, D]."""
        rows: Tensor = self.ops.embedding(indices, self.weight)
        return rows
