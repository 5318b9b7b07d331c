"""Weights in few bits, multiplied as integers (csrc/quantized.cpp): as the checkpoint has them, or rounded while loading."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from quire.checkpoint.gguf.block_codes import BlockRows
from quire.core.quantization import TABLE_ROUNDING, Rounding
from quire.kernels.array import Array
from quire.kernels.dtype import DType
from quire.kernels.native_linear import PackedWeight, linear, linear_gated
from quire.kernels.native_rows import gated_halves
from quire.kernels.panels import (
    PANEL,
    PanelLayout,
    QuantizedPanels,
    can_follow,
    empty_panels,
    empty_part,
    join_panels,
    layout_of_blocks,
    pack_blocks,
    round_to_panels,
)
from quire.kernels.tensor import Normalized
from quire.quantization.method import StoredWeight
from quire.quantization.panels import FloatPanels, PanelsTable
from quire.quantization.sketch import SketchSearch

EmptyPanels = Callable[[PanelLayout], QuantizedPanels]

VALUES_AT_ONCE = 1 << 20
"""Read and rounded together: enough for all threads."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Some outputs of a layer."""

    first: int
    last: int
    weight: PackedWeight


class FewBits(ABC):
    """What has no kernel in few bits is left to `others`."""

    def __init__(self, others: FloatPanels) -> None:
        self._others = others

    @abstractmethod
    def panels(self, part: StoredWeight, empty: EmptyPanels, *, of_table: bool) -> QuantizedPanels | None:
        """A tensor in memory that `empty` gives; None where it has to be left to `others`."""

    def load(self, parts: Sequence[StoredWeight], dtype: DType) -> list[Segment]:
        empty = empty_panels if len(parts) == 1 else empty_part
        segments: list[Segment] = []
        first = 0
        for part in parts:
            weight = self.panels(part, empty, of_table=False) or self._others.load([part], dtype)
            segments.append(Segment(first, first + part.num_outputs, weight))
            first += part.num_outputs
        return _join(segments)

    def rotates_heads(self, *num_inputs: int) -> bool:
        return False

    def normalizes(self, weight: list[Segment]) -> bool:
        return all(
            isinstance(segment.weight, QuantizedPanels) and segment.weight.layout.rotates_inputs for segment in weight
        )

    def apply(
        self, x: Array | Normalized, weight: list[Segment], bias: Array | None, residual: Array | None = None
    ) -> Array:
        rows: Array = x.x if isinstance(x, Normalized) else x
        y = rows.new_empty((rows.shape[0], weight[-1].last)) if residual is None else residual
        for segment in weight:
            part = slice(segment.first, segment.last)
            its_bias = None if bias is None else bias[part]
            linear(x, segment.weight, its_bias, y[:, part], adds=residual is not None)
        return y

    def apply_gated(self, x: Array | Normalized, weight: list[Segment], bias: Array | None, kind: str) -> Array:
        if bias is None and len(weight) == 1:
            return linear_gated(x, weight[0].weight, kind)
        return gated_halves(self.apply(x, weight, bias), kind)

    def load_table(self, part: StoredWeight, dtype: DType) -> PanelsTable:
        return PanelsTable(self.load_table_weight(part, dtype), dtype)

    def load_table_weight(self, part: StoredWeight, dtype: DType) -> PackedWeight:
        return self.panels(part, empty_panels, of_table=True) or self._others.load_table_weight(part, dtype)

    def search(self, table: PanelsTable) -> SketchSearch | None:
        return self._others.search(table)


class Stored(FewBits):
    """Those of the checkpoint; tensors stored as floats, or in a type without a kernel, stay floats."""

    def panels(self, part: StoredWeight, empty: EmptyPanels, *, of_table: bool) -> QuantizedPanels | None:
        made: list[QuantizedPanels] = []

        def pack(rows: BlockRows) -> bool:
            made.append(empty(layout_of_blocks(rows)))
            return pack_blocks(made[0], rows)

        return made[0] if part.blocks(pack) else None


class Rounded(FewBits):
    """Whatever the checkpoint has is rounded while it is loaded, but for tensors whose inputs are not whole groups."""

    def __init__(self, others: FloatPanels, rounding: Rounding) -> None:
        super().__init__(others)
        self._rounding = rounding

    def rotates_heads(self, *num_inputs: int) -> bool:
        sizes = ((count, self._rounding.group_of(count)) for count in num_inputs)
        return all(size is not None and self._rounding.rotates(count, size) for count, size in sizes)

    def panels(self, part: StoredWeight, empty: EmptyPanels, *, of_table: bool) -> QuantizedPanels | None:
        rounding = TABLE_ROUNDING if of_table else self._rounding
        size = rounding.group_of(part.num_inputs)
        if size is None:
            return None
        weight = empty(_rounded_layout(part, rounding, size))
        num_panels = max(1, VALUES_AT_ONCE // (PANEL * part.num_inputs))
        first = 0
        for rows in part.floats(num_panels * PANEL):
            last = first + -(-len(rows) // PANEL)
            round_to_panels(weight.panels.stored[first:last], weight.layout, rows)
            first = last
        return weight


def _rounded_layout(part: StoredWeight, rounding: Rounding, group_size: int) -> PanelLayout:
    return PanelLayout(
        num_outputs=part.num_outputs,
        num_inputs=part.num_inputs,
        bits=rounding.bits,
        zero=rounding.zero,
        group_size=group_size,
        groups_per_block=1,
        has_minimum=rounding.has_minimum,
        rotated=rounding.rotates(part.num_inputs, group_size),
        inputs_rotated=part.inputs_rotated,
    )


def _join(segments: Sequence[Segment]) -> list[Segment]:
    """Neighbours of one layout become one segment: one call instead of several."""
    runs: list[list[Segment]] = []
    for segment in segments:
        if runs and _can_follow(runs[-1][-1].weight, segment.weight):
            runs[-1].append(segment)
        else:
            runs.append([segment])
    return [run[0] if len(run) == 1 else _joined(run) for run in runs]


def _joined(run: Sequence[Segment]) -> Segment:
    weights = [segment.weight for segment in run if isinstance(segment.weight, QuantizedPanels)]
    return Segment(run[0].first, run[-1].last, join_panels(weights))


def _can_follow(first: PackedWeight, second: PackedWeight) -> bool:
    return (
        isinstance(first, QuantizedPanels)
        and isinstance(second, QuantizedPanels)
        and can_follow(first.layout, second.layout)
    )
