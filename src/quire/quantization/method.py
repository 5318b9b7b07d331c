"""How the weight of a linear layer is kept and multiplied: the seam for quantized weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from quire.checkpoint.gguf.block_codes import BlockRows
from quire.kernels.ops import DenseOps
from quire.kernels.tensor import Tensors


class StoredWeight(Protocol):
    """One tensor of a checkpoint, [num_outputs, num_inputs]; it is read once, by one of the ways."""

    @property
    def name(self) -> str:
        """In the checkpoint."""

    @property
    def num_outputs(self) -> int: ...

    @property
    def num_inputs(self) -> int: ...

    @property
    def inputs_rotated(self) -> bool:
        """Whether what it is multiplied by comes rotated, and its rows are (csrc/rotation.h)."""

    def pass_over(self) -> None:
        """What would be made of it is there already: it is not read."""

    def fill(self, destination: Any) -> None:
        """Read it as floats into memory of its shape, row by row."""

    def floats(self, num_rows: int) -> Iterator[npt.NDArray[np.float32]]:
        """Its rows as float32, so many at a time."""

    def blocks(self, fill: Callable[[BlockRows], bool]) -> bool:
        """Give it to `fill` in the blocks of its file, and False where it has none; `fill` says if all are finite."""


class Table(Protocol):
    """A weight [V, D] whose rows are looked up too: the embedding, which often is the projection to the vocabulary."""

    def rows(self, indices: Any) -> Any:
        """int64 [T] -> [T, D] of the model's dtype."""

    def logits(self, x: Any) -> Any:
        """[L, D] -> float32 [L, V], not rounded to the model's dtype on the way."""

    def most_likely(self, x: Any) -> tuple[Any, Any]:
        """[L, D] -> the argmax of each row of logits, int64 [L], and its logit, float32 [L]: the same bits. All are computed, and
        none is kept."""


class Search(Protocol):
    """Finds the most likely tokens in a table without all their logits."""

    def prepare(self) -> bool:
        """Whether all is ready for `most_likely`; where it is not, some part of that is done."""

    def most_likely(self, x: Any) -> tuple[Any, Any]:
        """[L, D] -> the argmax of each row of logits, int64 [L], and its logit, float32 [L]: the same bits."""


class QuantMethod(Protocol):
    """No more than one layer's weight is held in full while it is made."""

    def load(self, parts: Sequence[StoredWeight], dtype: Any) -> Any:
        """What `apply` reads: a weight whose outputs are those of all parts, in order."""

    def rotates_heads(self, *num_inputs: int) -> bool:
        """Whether weights of so many inputs are the better for heads that are rotated while they are loaded, all of them or none."""

    def normalizes(self, weight: Any) -> bool:
        """Whether x may be Normalized where it is multiplied by this weight."""

    def apply(self, x: Any, weight: Any, bias: Any | None, residual: Any | None = None) -> Any:
        """x [T, num_inputs] -> [T, num_outputs]; `weight` is what `load` returned.

        `residual` [T, num_outputs] is added; it is given up: the result may be in its memory.
        """

    def apply_gated(self, x: Any, weight: Any, bias: Any | None, kind: str) -> Any:
        """activation(the first half of what `apply` gives) * the second; `kind` as Ops.gated's."""

    def load_table(self, part: StoredWeight, dtype: Any) -> Table: ...

    def search(self, table: Any) -> Search | None:
        """In a table that `load_table` returned; None where there is none."""


class PackedMethod(QuantMethod, Protocol):
    """One of the native kernels', whose weights are pieces of memory (pieces.py)."""

    def load_table_weight(self, part: StoredWeight, dtype: Any) -> Any:
        """What `load_table` makes a table of."""


def load_dense(parts: Sequence[StoredWeight], dtype: Any, tensors: Tensors) -> Any:
    """[num_outputs, num_inputs] of `dtype`, each part read straight into its place."""
    weight = tensors.empty((sum(part.num_outputs for part in parts), parts[0].num_inputs), dtype)
    for part, rows in zip(parts, weight.split_with_sizes([part.num_outputs for part in parts], 0), strict=True):
        part.fill(rows)
    return weight


def plus_residual(y: Any, residual: Any | None) -> Any:
    return y if residual is None else residual + y


class DenseTable:
    """A Table of floats."""

    def __init__(self, ops: DenseOps, weight: Any) -> None:
        self._weight = weight
        self._ops = ops

    def rows(self, indices: Any) -> Any:
        return self._ops.embedding(indices, self._weight)

    def logits(self, x: Any) -> Any:
        return self._ops.logits(x, self._weight)

    def most_likely(self, x: Any) -> tuple[Any, Any]:
        largest, token_ids = self.logits(x).max(-1)
        return token_ids, largest


class Unquantized:
    """The weight stays as loaded."""

    def __init__(self, ops: DenseOps) -> None:
        self._ops = ops

    def load(self, parts: Sequence[StoredWeight], dtype: Any) -> Any:
        return load_dense(parts, dtype, self._ops.tensors)

    def rotates_heads(self, *num_inputs: int) -> bool:
        return False

    def normalizes(self, weight: Any) -> bool:
        return False

    def apply(self, x: Any, weight: Any, bias: Any | None, residual: Any | None = None) -> Any:
        return plus_residual(self._ops.linear(x, weight, bias), residual)

    def apply_gated(self, x: Any, weight: Any, bias: Any | None, kind: str) -> Any:
        gate, up = self.apply(x, weight, bias).chunk(2, dim=-1)
        return self._ops.gated(gate, up, kind)

    def load_table(self, part: StoredWeight, dtype: Any) -> DenseTable:
        return DenseTable(self._ops, load_dense([part], dtype, self._ops.tensors))

    def search(self, table: Any) -> None:
        return None
