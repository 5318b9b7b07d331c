"""Weights in panels of 16 outputs, multiplied natively: floats (csrc/dense.cpp), and tables of any kind."""

from __future__ import annotations

from collections.abc import Sequence

from quire.kernels.array import Array, empty_array
from quire.kernels.dtype import DType
from quire.kernels.native_linear import (
    DensePanels,
    PackedWeight,
    empty_dense,
    linear,
    linear_gated,
    linear_most_likely,
    pack_,
    weight_rows,
)
from quire.kernels.native_rows import gated_halves
from quire.kernels.native_sketch import can_sketch
from quire.quantization.method import StoredWeight
from quire.quantization.sketch import SketchSearch


class FloatPanels:
    """Values and dtype stay; only their order in memory changes, and it changes where they lie."""

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
        return linear(x, weight, bias, residual, adds=residual is not None)

    def apply_gated(self, x: Array, weight: DensePanels, bias: Array | None, kind: str) -> Array:
        return linear_gated(x, weight, kind) if bias is None else gated_halves(self.apply(x, weight, bias), kind)

    def load_table(self, part: StoredWeight, dtype: DType) -> PanelsTable:
        return PanelsTable(self.load_table_weight(part, dtype), dtype)

    def load_table_weight(self, part: StoredWeight, dtype: DType) -> DensePanels:
        return self.load([part], dtype)

    def search(self, table: PanelsTable) -> SketchSearch | None:
        return SketchSearch(table.weight) if can_sketch(table.weight.num_inputs) else None


class PanelsTable:
    """A Table of floats or of few bits, whose rows are floats of `dtype`."""

    def __init__(self, weight: PackedWeight, dtype: DType) -> None:
        self.weight = weight
        self._dtype = dtype

    def rows(self, indices: Array) -> Array:
        return weight_rows(self.weight, indices, self._dtype)

    def logits(self, x: Array) -> Array:
        return linear(x, self.weight, output=empty_array((x.shape[0], self.weight.num_outputs), DType.FLOAT32))

    def most_likely(self, x: Array) -> tuple[Array, Array]:
        return linear_most_likely(x, self.weight)
