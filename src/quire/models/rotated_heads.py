"""Value heads that are rotated once, while they are loaded (QuaRot: Ashkboos et al. 2024).

Attention weighs values and adds them up, whatever basis they are in. So each head's outputs of the value projection are rotated, and
alike the inputs of the output projection that they meet: the product of both stays what it was. In between no value is far larger
than its neighbours, as 8 bits want it, and no step has to rotate what attention gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from quire.checkpoint.gguf.block_codes import BlockRows
from quire.quantization.method import QuantMethod, StoredWeight

SMALLEST_HEAD = 32
"""That is rotated by itself: in a smaller one few values would meet."""


class RotatedHeads:
    """A StoredWeight that is read as floats: `part`, whose outputs are heads of values; or `inputs_rotated`, whose inputs are."""

    def __init__(self, part: StoredWeight, head_dim: int, inputs_rotated: bool) -> None:
        self.name, self.num_outputs, self.num_inputs = part.name, part.num_outputs, part.num_inputs
        self.inputs_rotated = inputs_rotated
        self.pass_over = part.pass_over
        self._part = part
        self._head_dim = head_dim

    def fill(self, destination: Any) -> None:
        raise AssertionError("a method that rotates heads rounds floats")

    def floats(self, num_rows: int) -> Iterator[npt.NDArray[np.float32]]:
        """Whole heads of outputs at a time: as many as fit, or one."""
        if not self.inputs_rotated:
            num_rows = max(1, num_rows // self._head_dim) * self._head_dim
        for rows in self._part.floats(num_rows):
            yield rotated_heads(rows, self._head_dim, axis=1 if self.inputs_rotated else 0)

    def blocks(self, fill: Callable[[BlockRows], bool]) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class HeadRotation:
    """Of the heads that are a linear layer's inputs; or else of those that are the outputs of its last part."""

    head_dim: int
    of_inputs: bool

    def weights(self, parts: Sequence[StoredWeight]) -> list[StoredWeight]:
        first = 0 if self.of_inputs else len(parts) - 1
        return [*parts[:first], *(RotatedHeads(part, self.head_dim, self.of_inputs) for part in parts[first:])]

    def bias(self, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Of the last part, whose outputs are heads, rotated as these are."""
        return rotated_heads(values[:, None], self.head_dim, axis=0)[:, 0]


def rotations_of_values(
    method: QuantMethod, head_dim: int, hidden_size: int, query_size: int
) -> tuple[HeadRotation, HeadRotation] | tuple[None, None]:
    """Of the projection that ends with values, and of that of attention's output; None where `method` is not the better for it."""
    if not can_rotate_heads(head_dim) or not method.rotates_heads(hidden_size, query_size):
        return None, None
    return HeadRotation(head_dim, of_inputs=False), HeadRotation(head_dim, of_inputs=True)


def can_rotate_heads(head_dim: int) -> bool:
    """Whether all values of such a head meet: powers of two."""
    return head_dim >= SMALLEST_HEAD and head_dim & (head_dim - 1) == 0


def rotated_heads(values: npt.NDArray[np.float32], head_dim: int, *, axis: int) -> npt.NDArray[np.float32]:
    """[R, K] -> [R, K], whose `axis` is whole heads, each times an orthogonal Hadamard matrix: its own inverse. Sums have one order."""
    if axis == 1:
        return np.ascontiguousarray(rotated_heads(np.ascontiguousarray(values.T), head_dim, axis=0).T)
    rows = values
    half = 1
    while half < head_dim:
        first, second = np.moveaxis(rows.reshape(-1, 2, half, values.shape[1]), 1, 0)
        rows = np.stack((first + second, first - second), 1)
        half *= 2
    met: npt.NDArray[np.float32] = rows.reshape(values.shape) * np.float32(head_dim**-0.5)
    return met
