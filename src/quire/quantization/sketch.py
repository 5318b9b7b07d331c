"""Tables are searched by a sketch (kernels/native_sketch.py), which is made of their rows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from quire.kernels.array import Array, widened
from quire.kernels.dtype import DType
from quire.kernels.native_linear import PackedWeight, weight_rows
from quire.kernels.native_sketch import FINE, Sketch, empty_sketch, most_likely_by_sketch, sketch_rows_
from quire.kernels.panels import PANEL

WEIGHTS_AT_ONCE = 2**20
"""Sketched in about the time of a step."""
SAMPLED_ROWS = 2048
"""Which say what columns are large."""


class SketchSearch:
    """A Search. The sketch is made a part at a time: nobody waits for it, and who never asks does without."""

    def __init__(self, table: PackedWeight) -> None:
        self._table = table
        self._sketch: Sketch | None = None
        self._parts = sketch_in_parts(table)

    def prepare(self) -> bool:
        if self._sketch is None:
            self._sketch = next(self._parts)
        return self._sketch is not None

    def most_likely(self, x: Array) -> tuple[Array, Array]:
        assert self._sketch is not None
        token_ids, logits, _ = most_likely_by_sketch(x, self._table, self._sketch)
        return token_ids, logits


def sketch_in_parts(table: PackedWeight) -> Iterator[Sketch | None]:
    """None after each part but the last, then the whole."""
    sketch = empty_sketch(table.num_outputs, _largest_columns(table), table.num_inputs)
    size = max(1, WEIGHTS_AT_ONCE // (table.num_inputs * PANEL)) * PANEL
    for first in range(0, table.num_outputs, size):
        sketch_rows_(sketch, first, _rows(table, np.arange(first, min(first + size, table.num_outputs))))
        yield sketch if first + size >= table.num_outputs else None


def _largest_columns(table: PackedWeight) -> npt.NDArray[np.int64]:
    places = np.linspace(0, table.num_outputs - 1, min(SAMPLED_ROWS, table.num_outputs)).astype(np.int64)
    sample = _rows(table, places)
    numbers = widened(sample.stored, sample.dtype)
    return np.argsort(-np.einsum("rk,rk->k", numbers, numbers), kind="stable")[:FINE]


def _rows(table: PackedWeight, indices: npt.NDArray[np.int64]) -> Array:
    """As they are multiplied: those of few bits are not rounded to the model's dtype."""
    return weight_rows(table, Array(indices, DType.INT64), DType.FLOAT32)
