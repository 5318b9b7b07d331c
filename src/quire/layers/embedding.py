"""Rows of a table by index: token embeddings and learned positions."""

from __future__ import annotations

import torch

from quire.kernels.ops import Ops


class Embedding:
    """`offset` is added to each index (OPT's positions start at row 2)."""

    __slots__ = ("offset", "ops", "weight")

    def __init__(self, ops: Ops, weight: torch.Tensor, offset: int = 0) -> None:
        self.ops = ops
        self.weight = weight
        self.offset = offset

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        """int64 [T] -> [T, D]."""
        return self.ops.embedding(indices + self.offset if self.offset else indices, self.weight)
