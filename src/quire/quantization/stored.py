"""Weights in the few bits a checkpoint stores them in, multiplied as integers (csrc/quantized.cpp)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from quire.kernels.native_linear import panel_rows, quantized_linear
from quire.kernels.panels import PANEL, PanelWeight, empty_panels, fill_panels, join_panels, layout_of
from quire.kernels.recording import empty
from quire.quantization.method import QuantMethod, StoredWeight, Table

PANELS_AT_ONCE = 8
"""Read and laid out together: few enough that what they pass through stays in the cache."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Some outputs of a layer; `weight` is panels, or what the method for the others made."""

    first: int
    last: int
    weight: Any


class Stored:
    """Tensors stored as floats, or in a type without a kernel, are left to `others`."""

    def __init__(self, others: QuantMethod) -> None:
        self._others = others

    def load(self, parts: Sequence[StoredWeight], dtype: torch.dtype) -> list[Segment]:
        segments: list[Segment] = []
        first = 0
        for part in parts:
            weight = read_panels(part) or self._others.load([part], dtype)
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
        panels = read_panels(part)
        return self._others.load_table(part, dtype) if panels is None else PanelTable(panels, dtype)


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


def read_panels(part: StoredWeight) -> PanelWeight | None:
    """A tensor as it is stored, laid out for the kernel; None where it is stored as floats."""
    chunks = part.quantized(PANELS_AT_ONCE * PANEL)
    if chunks is None:
        return None
    weight: PanelWeight | None = None
    for number, rows in enumerate(chunks):
        weight = weight or empty_panels(layout_of(rows, part.num_outputs))
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
