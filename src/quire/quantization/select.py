"""The table of ways to keep a weight."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

from quire.core.places import load_place
from quire.core.quantization import ROUNDINGS, Quantization
from quire.kernels.ops import DenseOps, Ops
from quire.quantization.few_bits import Rounded, Stored
from quire.quantization.method import PackedMethod, QuantMethod, Unquantized
from quire.quantization.panels import FloatPanels

ONEDNN = "quire.quantization.onednn:OneDNN"
"""torch's."""
METHODS: dict[str, Callable[[FloatPanels], PackedMethod]] = {
    "none": lambda floats: floats,
    "stored": Stored,
    **{name: partial(Rounded, rounding=rounding) for name, rounding in ROUNDINGS.items()},
}
"""Of the native kernels, each with the method for weights that it leaves as floats."""


def select_method(ops: Ops, dtype: Any, quantization: Quantization) -> QuantMethod:
    """How linear layers keep their weights with these operators: as the fastest that multiplies this dtype wants them."""
    if ops.name == "cpu":
        return select_packed_method(quantization)
    assert quantization == "none", "plan/ leaves other weights to the native kernels"
    dense = cast(DenseOps, ops)
    if ops.name == "torch" and load_place(ONEDNN).multiplies(dtype):
        return cast(QuantMethod, load_place(ONEDNN)(dense))
    return Unquantized(dense)


def select_packed_method(quantization: Quantization) -> PackedMethod:
    """That of the native kernels."""
    return METHODS[quantization](FloatPanels())
