"""The projection from hidden states to the vocabulary."""

from __future__ import annotations

from quire.kernels.ops import Ops
from quire.kernels.tensor import Tensor
from quire.quantization.method import Search, Table


class Head:
    """`table` [vocab_size, hidden] is often the embedding's own. `softcap` bounds the logits, in some families.

    `search`, of the table, where there is one. Softcapped logits have none: two that differ may become equal.
    """

    __slots__ = ("ops", "search", "softcap", "table")

    def __init__(self, ops: Ops, table: Table, softcap: float | None, search: Search | None = None) -> None:
        assert softcap is None or search is None
        self.ops = ops
        self.table = table
        self.softcap = softcap
        self.search = search

    def forward(self, x: Tensor) -> Tensor:
        """[L, hidden] -> float32 [L, vocab_size]."""
        logits: Tensor = self.table.logits(x)
        return logits if self.softcap is None else self.ops.softcap(logits, self.softcap)

    @property
    def needs_logits(self) -> bool:
        """Whether the most likely tokens can only be told from all logits."""
        return self.softcap is not None

    def most_likely(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[L, hidden] -> the argmax of each row of `forward`'s, int64 [L], and its logit, float32 [L]."""
        assert not self.needs_logits
        return self.table.most_likely(x)

    def search_for(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The same, by a search that is ready."""
        assert self.search is not None
        return self.search.most_likely(x)
