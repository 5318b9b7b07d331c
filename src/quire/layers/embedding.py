"""Rows of a table by index: token embeddings and learned positions."""

from __future__ import annotations

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
