"""Rows of a table by index: token embeddings and learned positions."""

from __future__ import annotations

import torch

from quire.quantization.method import Table


class Embedding:
    """`offset` is added to each index (OPT's positions start at row 2)."""

    __slots__ = ("offset", "table")

    def __init__(self, table: Table, offset: int = 0) -> None:
        self.table = table
        self.offset = offset

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        """int64 [T] -> [T, D]."""
        return self.table.rows(indices + self.offset if self.offset else indices)
