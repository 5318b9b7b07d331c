"""The projection from hidden states to the vocabulary."""

from __future__ import annotations

from quire.kernels.ops import Ops
from quire.kernels.tensor import Tensor
from quire.layers.linear import Linear
from quire.quantization.method import Search, Table


class Head:
    """`table` [V, E] is often the embedding's own; `projection` (D -> E) is there where E differs from D. `softcap` bounds the
    logits, in some families.

    `search`, of the table, where there is one. Softcapped logits have none: two that differ may become equal.
    """

    __slots__ = ("ops", "projection", "search", "softcap", "table")

    def __init__(
        self, ops: Ops, table: Table, projection: Linear | None, softcap: float | None, search: Search | None
    ) -> None:
        assert softcap is None or search is None
        self.ops = ops
        self.table = table
        self.projection = projection
        self.softcap = softcap
        self.search = search

    def logits(self, hidden: Tensor) -> Tensor:
        """[L, D] -> float32 [L, V]."""
        logits: Tensor = self.table.logits(self._projected(hidden))
        return logits if self.softcap is None else self.ops.softcap(logits, self.softcap)

    @property
    def needs_logits(self) -> bool:
        """Whether the most likely tokens can only be told from all logits."""
        return self.softcap is not None

    def most_likely(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """[L, D] -> the argmax of each row of logits, int64 [L], and its logit, float32 [L]; not where it `needs_logits`."""
        assert not self.needs_logits
        return self.table.most_likely(self._projected(hidden))

    def prepare_search(self) -> bool:
        """Whether `search_for` can be called; where it will be later, some part of what it needs is made."""
        return self.search is not None and self.search.prepare()

    def search_for(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """What `most_likely` says, and few logits are computed."""
        assert self.search is not None
        return self.search.most_likely(self._projected(hidden))

    def _projected(self, hidden: Tensor) -> Tensor:
        return hidden if self.projection is None else self.projection.forward(hidden)
