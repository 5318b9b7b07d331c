"""The projection from hidden states to the vocabulary."""

from __future__ import annotations

import torch

from quire.kernels.ops import Ops


class Head:
    """`weight` [vocab_size, hidden]; often the embedding's own memory."""

    __slots__ = ("_ops", "weight")

    def __init__(self, ops: Ops, weight: torch.Tensor) -> None:
        self._ops = ops
        self.weight = weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[L, hidden] -> float32 [L, vocab_size]."""
        return self._ops.logits(x, self.weight)
