"""Tables are searched by a sketch (kernels/native_sketch.py), which is made of their rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt

from quire.kernels.array import Array, widened
from quire.kernels.dtype import DType
from quire.kernels.native_linear import DensePanels, panel_rows
from quire.kernels.native_sketch import FINE, Sketch, can_sketch, empty_sketch, most_likely_by_sketch, sketch_rows_
from quire.kernels.panels import PANEL, QuantizedPanels

WEIGHTS_AT_ONCE = 2**20
"""Sketched in about the time of a step."""
SAMPLED_ROWS = 2048
"""Which say what columns are large."""


class PackedTable(Protocol):
    """A Table of the native kernels."""

    weight: DensePanels | QuantizedPanels

    def rows(self, indices: Array) -> Array: ...


class SketchSearch:
    """A Search. The sketch is made a part at a time: nobody waits for it, and who never asks does without."""

    def __init__(self, table: PackedTable) -> None:
        self._table = table
        self._sketch: Sketch | None = None
        self._parts = sketch_in_parts(table)

    @staticmethod
    def works(table: PackedTable) -> bool:
        return can_sketch(_shape(table)[1])

    def prepare(self) -> bool:
        if self._sketch is None:
            self._sketch = next(self._parts)
        return self._sketch is not None

    def most_likely(self, x: Array) -> tuple[Array, Array]:
        assert self._sketch is not None
        token_ids, logits, _ = most_likely_by_sketch(x, self._table.weight, self._sketch)
        return token_ids, logits


def sketch_in_parts(table: PackedTable) -> Iterator[Sketch | None]:
    """None after each part but the last, then the whole."""
    vocab_size, num_inputs = _shape(table)
    sketch = empty_sketch(vocab_size, _largest_columns(table), num_inputs)
    size = max(1, WEIGHTS_AT_ONCE // (num_inputs * PANEL)) * PANEL
    for first in range(0, vocab_size, size):
        sketch_rows_(sketch, first, _rows(table, np.arange(first, min(first + size, vocab_size))))
        yield sketch if first + size >= vocab_size else None


def _shape(table: PackedTable) -> tuple[int, int]:
    """[V, K]."""
    shaped = table.weight.layout if isinstance(table.weight, QuantizedPanels) else table.weight
    return shaped.num_outputs, shaped.num_inputs


def _largest_columns(table: PackedTable) -> npt.NDArray[np.int64]:
    vocab_size, _ = _shape(table)
    sample = _rows(table, np.linspace(0, vocab_size - 1, min(SAMPLED_ROWS, vocab_size)).astype(np.int64))
    numbers = widened(sample.stored, sample.dtype)
    return np.argsort(-np.einsum("rk,rk->k", numbers, numbers), kind="stable")[:FINE]


def _rows(table: PackedTable, indices: npt.NDArray[np.int64]) -> Array:
    """As they are multiplied: those of few bits are not rounded to the model's dtype."""
    places = Array(indices, DType.INT64)
    return (
        panel_rows(table.weight, places, DType.FLOAT32)
        if isinstance(table.weight, QuantizedPanels)
        else table.rows(places)
    )
