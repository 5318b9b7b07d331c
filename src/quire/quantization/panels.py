"""Weights of 16 or 32 bits in panels of 16 outputs, multiplied natively (csrc/dense.cpp)."""

from __future__ import annotations

from collections.abc import Sequence

from quire.kernels.array import Array, empty_array
from quire.kernels.dtype import NATIVE_DTYPES, DType
from quire.kernels.native_linear import (
    DensePanels,
    dense_gated,
    dense_linear,
    dense_most_likely,
    dense_rows,
    empty_dense,
    pack_,
)
from quire.kernels.native_rows import gated_halves
from quire.quantization.method import StoredWeight
from quire.quantization.sketch import PackedTable, SketchSearch


class FloatPanels:
    """Values and dtype stay; only their order in memory changes, and it changes where they lie."""

    @staticmethod
    def runs(ops: str, dtype: DType) -> bool:
        return ops == "cpu" and dtype in NATIVE_DTYPES

    def load(self, parts: Sequence[StoredWeight], dtype: DType) -> DensePanels:
        weight = empty_dense(sum(part.num_outputs for part in parts), parts[0].num_inputs, dtype)
        first = 0
        for part in parts:
            part.fill(weight.memory[first : first + part.num_outputs, : weight.num_inputs])
            first += part.num_outputs
        return pack_(weight)

    def rotates_heads(self, *num_inputs: int) -> bool:
        return False

    def normalizes(self, weight: DensePanels) -> bool:
        return False

    def apply(self, x: Array, weight: DensePanels, bias: Array | None, residual: Array | None = None) -> Array:
        return dense_linear(x, weight, bias, residual, adds=residual is not None)

    def apply_into(self, output: Array, x: Array, weight: DensePanels, bias: Array | None, *, adds: bool) -> None:
        """Some outputs of a layer, which may lie apart; `adds` to what is there."""
        dense_linear(x, weight, bias, output, adds=adds)

    def apply_gated(self, x: Array, weight: DensePanels, bias: Array | None, kind: str) -> Array:
        return dense_gated(x, weight, kind) if bias is None else gated_halves(self.apply(x, weight, bias), kind)

    def load_table(self, part: StoredWeight, dtype: DType) -> DensePanelsTable:
        return self.table(self.load_table_weight(part, dtype), dtype)

    def load_table_weight(self, part: StoredWeight, dtype: DType) -> DensePanels:
        return self.load([part], dtype)

    def table(self, weight: DensePanels, dtype: DType) -> DensePanelsTable:
        return DensePanelsTable(weight)

    def search(self, table: PackedTable) -> SketchSearch | None:
        return SketchSearch(table) if SketchSearch.works(table) else None


class DensePanelsTable:
    """A Table in panels."""

    def __init__(self, weight: DensePanels) -> None:
        self.weight = weight

    def rows(self, indices: Array) -> Array:
        return dense_rows(self.weight, indices)

    def logits(self, x: Array) -> Array:
        return dense_linear(x, self.weight, output=empty_array((x.shape[0], self.weight.num_outputs), DType.FLOAT32))

    def most_likely(self, x: Array) -> tuple[Array, Array]:
        return dense_most_likely(x, self.weight)
