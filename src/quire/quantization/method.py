"""How the weight of a linear layer is kept and multiplied: the seam for quantized weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch

from quire.checkpoint.quantized import QuantizedRows
from quire.kernels.ops import Ops


class StoredWeight(Protocol):
    """One tensor of a checkpoint, [num_outputs, num_inputs]; it is read once, by one of the two ways."""

    @property
    def num_outputs(self) -> int: ...

    @property
    def num_inputs(self) -> int: ...

    def fill(self, destination: torch.Tensor) -> None:
        """Read it as floats into memory of its shape, row by row."""

    def quantized(self, num_rows: int) -> Iterator[QuantizedRows] | None:
        """Its rows as they are stored, so many at a time; None where it is stored as floats."""


class Table(Protocol):
    """A weight [V, D] whose rows are looked up too: the embedding, which often is the projection to the vocabulary."""

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        """int64 [T] -> [T, D] of the model's dtype."""

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """[L, D] -> float32 [L, V], not rounded to the model's dtype on the way."""


class QuantMethod(Protocol):
    """No more than one layer's weight is held in full while it is made."""

    def load(self, parts: Sequence[StoredWeight], dtype: torch.dtype) -> Any:
        """What `apply` reads: a weight whose outputs are those of all parts, in order."""

    def apply(self, x: torch.Tensor, weight: Any, bias: torch.Tensor | None) -> torch.Tensor:
        """x [T, num_inputs] -> [T, num_outputs]; `weight` is what `load` returned."""

    def load_table(self, part: StoredWeight, dtype: torch.dtype) -> Table: ...


def load_dense(parts: Sequence[StoredWeight], dtype: torch.dtype) -> torch.Tensor:
    """[num_outputs, num_inputs] of `dtype`, each part read straight into its place."""
    weight = torch.empty(sum(part.num_outputs for part in parts), parts[0].num_inputs, dtype=dtype)
    for part, rows in zip(parts, torch.split_with_sizes(weight, [part.num_outputs for part in parts]), strict=True):
        part.fill(rows)
    return weight


class DenseTable:
    """A Table of floats."""

    def __init__(self, ops: Ops, weight: torch.Tensor) -> None:
        self._weight = weight
        self._ops = ops

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        return self._ops.embedding(indices, self._weight)

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        return self._ops.logits(x, self._weight)


class Unquantized:
    """The weight stays as loaded."""

    def __init__(self, ops: Ops) -> None:
        self._ops = ops

    def load(self, parts: Sequence[StoredWeight], dtype: torch.dtype) -> torch.Tensor:
        return load_dense(parts, dtype)

    def apply(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return self._ops.linear(x, weight, bias)

    def load_table(self, part: StoredWeight, dtype: torch.dtype) -> DenseTable:
        return DenseTable(self._ops, load_dense([part], dtype))
