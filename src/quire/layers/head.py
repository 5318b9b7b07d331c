"""The projection from hidden states to the vocabulary."""

from __future__ import annotations

import torch

from quire.quantization.method import Table


class Head:
    """`table` [vocab_size, hidden] is often the embedding's own."""

    __slots__ = ("table",)

    def __init__(self, table: Table) -> None:
        self.table = table

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[L, hidden] -> float32 [L, vocab_size]."""
        return self.table.logits(x)
