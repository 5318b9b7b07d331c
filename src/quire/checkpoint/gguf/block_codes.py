"""Blocks as integers and their scales, nothing rounded: for kernels that multiply in few bits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class CodeType:
    """What the blocks of one type hold: a weight is scale * (code - zero) + minimum, in groups of `group_size`.

    With several groups a block, scales and minima are products of the block's number and the group's own small integer.
    """

    bits: int
    zero: int
    group_size: int
    groups_per_block: int
    has_minimum: bool

    @property
    def bytes_per_value(self) -> float:
        """Of a weight kept as codes and scales."""
        small = self.groups_per_block if self.groups_per_block > 1 else 0
        scales = (2 + small) * (2 if self.has_minimum else 1)
        return self.bits / 8 + scales / (self.group_size * self.groups_per_block)


@dataclass(frozen=True, slots=True)
class BlockRows:
    """R rows of a tensor, still in the blocks of the file."""

    type_name: str
    """Of CODE_TYPES."""
    num_inputs: int
    blocks: npt.NDArray[np.uint8]
    """[rows of the tensor, bytes of a row], a view of the file."""
    rows: npt.NDArray[np.int64]
    """[R], their places in it."""


CODE_TYPES = {
    "Q4_0": CodeType(4, 8, 32, 1, False),
    "Q4_1": CodeType(4, 0, 32, 1, True),
    "Q5_0": CodeType(8, 16, 32, 1, False),
    "Q5_1": CodeType(8, 0, 32, 1, True),
    "Q8_0": CodeType(8, 128, 32, 1, False),
    "Q4_K": CodeType(4, 0, 32, 8, True),
    "Q5_K": CodeType(8, 0, 32, 8, True),
    "Q6_K": CodeType(8, 32, 16, 16, False),
}
"""By the names of BLOCK_TYPES. The others are dequantized."""
