"""Weights in few bits, multiplied as integers (csrc/quantized.cpp): as the checkpoint has them, or rounded while loading."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from quire.checkpoint.quantized import QuantizedRows
from quire.kernels.native_linear import panel_rows, quantized_linear
from quire.kernels.panels import PANEL, PanelWeight, empty_panels, fill_panels, join_panels, layout_of
from quire.kernels.recording import empty
from quire.quantization.method import QuantMethod, StoredWeight, Table
from quire.quantization.rounding import GROUP_SIZE, round_rows

PANELS_AT_ONCE = 8
"""Read and laid out together: few enough that what they pass through stays in the cache."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Some outputs of a layer; `weight` is panels, or what the method for the others made."""

    first: int
    last: int
    weight: Any


class FewBits(ABC):
    """What has no kernel in few bits is left to `others`."""

    def __init__(self, others: QuantMethod) -> None:
        self._others = others

    @abstractmethod
    def panels(self, part: StoredWeight, *, of_table: bool) -> PanelWeight | None:
        """A tensor laid out for the kernel; None, and nothing read, where it has to be left to `others`."""

    def load(self, parts: Sequence[StoredWeight], dtype: torch.dtype) -> list[Segment]:
        segments: list[Segment] = []
        first = 0
        for part in parts:
            weight = self.panels(part, of_table=False) or self._others.load([part], dtype)
            segments.append(Segment(first, first + part.num_outputs, weight))
            first += part.num_outputs
        return _join(segments)

    def apply(self, x: torch.Tensor, weight: list[Segment], bias: torch.Tensor | None) -> torch.Tensor:
        y = empty((x.shape[0], weight[-1].last), x.dtype)
        for segment in weight:
            part = slice(segment.first, segment.last)
            its_bias = None if bias is None else bias[part]
            if isinstance(segment.weight, PanelWeight):
                quantized_linear(x, segment.weight, its_bias, y[:, part])
            else:
                y[:, part] = self._others.apply(x, segment.weight, its_bias)
        return y

    def load_table(self, part: StoredWeight, dtype: torch.dtype) -> Table:
        panels = self.panels(part, of_table=True)
        return self._others.load_table(part, dtype) if panels is None else PanelTable(panels, dtype)


class Stored(FewBits):
    """Those of the checkpoint; tensors stored as floats, or in a type without a kernel, stay floats."""

    def panels(self, part: StoredWeight, *, of_table: bool) -> PanelWeight | None:
        chunks = part.quantized(PANELS_AT_ONCE * PANEL)
        return None if chunks is None else lay_out(chunks, part.num_outputs)


class Rounded(FewBits):
    """Whatever the checkpoint has is rounded while it is loaded, but for tensors whose inputs are not whole groups.

    Tables have 8 bits: with 4 the vocabulary's logits suffer most (docs/lab.md).
    """

    def __init__(self, others: QuantMethod, bits: int) -> None:
        super().__init__(others)
        self._bits = bits

    def panels(self, part: StoredWeight, *, of_table: bool) -> PanelWeight | None:
        if part.num_inputs % GROUP_SIZE:
            return None
        bits = 8 if of_table else self._bits
        chunks = part.floats(PANELS_AT_ONCE * PANEL)
        return lay_out((round_rows(rows.numpy(), bits) for rows in chunks), part.num_outputs)


class PanelTable:
    """A Table of few bits."""

    def __init__(self, panels: PanelWeight, dtype: torch.dtype) -> None:
        self._panels = panels
        self._dtype = dtype

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        return panel_rows(self._panels, indices, self._dtype)

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        output = empty((x.shape[0], self._panels.layout.num_outputs), torch.float32)
        return quantized_linear(x, self._panels, output=output)


def lay_out(chunks: Iterable[QuantizedRows], num_outputs: int) -> PanelWeight | None:
    """Panels from their rows, PANELS_AT_ONCE in each chunk; None of no rows."""
    weight: PanelWeight | None = None
    for number, rows in enumerate(chunks):
        weight = weight or empty_panels(layout_of(rows, num_outputs))
        first = number * PANELS_AT_ONCE
        fill_panels(weight.panels.numpy()[first : first + PANELS_AT_ONCE], weight.layout, rows)
    return weight


def _join(segments: list[Segment]) -> list[Segment]:
    """Neighbours of one layout become one segment: one call instead of several."""
    joined = segments[:1]
    for segment in segments[1:]:
        before = joined[-1]
        if isinstance(before.weight, PanelWeight) and isinstance(segment.weight, PanelWeight):
            both = join_panels(before.weight, segment.weight)
            if both is not None:
                joined[-1] = Segment(before.first, segment.last, both)
                continue
        joined.append(segment)
    return joined
