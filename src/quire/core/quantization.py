"""How a model's weights are kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

RoundedName = Literal[
    "int8",
    "int8-g32",
    "int8-g64",
    "int8-g128",
    "int4",
    "int4-g64",
    "int4-g128",
    "int4-symmetric",
    "int4-symmetric-g64",
    "int4-symmetric-g128",
]
Quantization = Literal["none", "stored", RoundedName]
"""`none`: as floats of the model's dtype. `stored`: in the few bits the checkpoint has them in.

The others: rounded while loading, whatever the checkpoint has, as ROUNDINGS says.
"""

QuantizationChoice = Literal["auto", Quantization]
"""`auto`: as stored where that is in few bits and the native kernels run, unless a dtype is asked for."""

SMALLEST_GROUP = 32
LARGEST_GROUP = 16384
"""Of inputs: products with larger ones would not fit 32 bits, were each of their neighbours' outliers as large as it can be."""
LARGEST_ROTATED_GROUP = 65536
"""The same of rotated rows, which have no outliers."""


@dataclass(frozen=True, slots=True)
class Rounding:
    """Codes of `bits` with a scale for each group of inputs of each output, and perhaps a minimum too (a zero point)."""

    bits: Literal[4, 8]
    group_size: int
    """At most, but for rotated rows (LARGEST_ROTATED_GROUP). LARGEST_GROUP: an output's whole channel, if that is not longer."""
    has_minimum: bool = False
    rotated: bool = False
    """Rows are rotated before, where a whole one is a group (csrc/rotation.h)."""

    def group_of(self, num_inputs: int) -> int | None:
        """The largest group that a row of so many inputs can be divided into; None: they are not whole groups at all."""
        if self.rotated and num_inputs <= LARGEST_ROTATED_GROUP and num_inputs % SMALLEST_GROUP == 0:
            return num_inputs
        sizes = range(min(self.group_size, num_inputs), 0, -1)
        return next((size for size in sizes if num_inputs % size == 0 and size % SMALLEST_GROUP == 0), None)

    @property
    def zero(self) -> int:
        """The code of 0, where there is no minimum."""
        return 0 if self.has_minimum else 1 << (self.bits - 1)

    def rotates(self, num_inputs: int, group_size: int) -> bool:
        return self.rotated and group_size == num_inputs

    def bytes_per_weight(self, num_inputs: int) -> float | None:
        """Of a code and its part of the group's float16 scale and minimum; None where rows of so many inputs stay floats."""
        size = self.group_of(num_inputs)
        return None if size is None else self.bits / 8 + (4 if self.has_minimum else 2) / size


ROUNDINGS: dict[str, Rounding] = {
    "int8": Rounding(8, LARGEST_GROUP, rotated=True),
    "int8-g32": Rounding(8, 32),
    "int8-g64": Rounding(8, 64),
    "int8-g128": Rounding(8, 128),
    "int4": Rounding(4, 32, has_minimum=True),
    "int4-g64": Rounding(4, 64, has_minimum=True),
    "int4-g128": Rounding(4, 128, has_minimum=True),
    "int4-symmetric": Rounding(4, 32),
    "int4-symmetric-g64": Rounding(4, 64),
    "int4-symmetric-g128": Rounding(4, 128),
}
"""By their names (RoundedName)."""
TABLE_ROUNDING = ROUNDINGS["int8"]
"""Of tables, whatever the layers have: with 4 bits the vocabulary's logits suffer most, and with groups a batch's take longer
(docs/lab.md)."""
