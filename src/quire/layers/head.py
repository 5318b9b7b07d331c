"""The projection from hidden states to the vocabulary."""

from __future__ import annotations

from quire.kernels.ops import Ops
from quire.kernels.tensor import Tensor
from quire.quantization.method import Table


class Head:
    """`table` [vocab_size, hidden] is often the embedding's own. `softcap` bounds the logits, in some families."""

    __slots__ = ("ops", "softcap", "table")

    def __init__(self, ops: Ops, table: Table, softcap: float | None) -> None:
        self.ops = ops
        self.table = table
        self.softcap = softcap

    def forward(self, x: Tensor) -> Tensor:
        """[L, hidden] -> float32 [L, vocab_size]."""
        logits: Tensor = self.table.logits(x)
        return logits if self.softcap is None else self.ops.softcap(logits, self.softcap)
