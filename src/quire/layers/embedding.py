"""Rows of a table by index: token embeddings and learned positions."""

from __future__ import annotations

import torch

from quire.quantization.method import Table


class Embedding:
    __slots__ = ("table",)

    def __init__(self, table: Table) -> None:
        self.table = table

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        """int64 [T] -> [T, D]."""
        return self.table.rows(indices)
