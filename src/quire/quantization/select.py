"""The table of ways to keep a weight."""

from __future__ import annotations

from collections.abc import Callable

import torch

from quire.core.quantization import Quantization
from quire.kernels.ops import Ops
from quire.quantization.few_bits import Rounded, Stored
from quire.quantization.method import QuantMethod, Unquantized
from quire.quantization.onednn import OneDNN
from quire.quantization.panels import Panels

METHODS: dict[Quantization, Callable[[QuantMethod], QuantMethod]] = {
    "none": lambda floats: floats,
    "stored": Stored,
    "int8": lambda floats: Rounded(floats, bits=8),
    "int4": lambda floats: Rounded(floats, bits=4),
}
"""Each with the method for weights that it leaves as floats."""


def select_method(ops: Ops, dtype: torch.dtype, quantization: Quantization) -> QuantMethod:
    """How linear layers keep their weights with these operators: as the fastest that multiplies this dtype wants them."""
    return METHODS[quantization](_method_for_floats(ops, dtype))


def _method_for_floats(ops: Ops, dtype: torch.dtype) -> QuantMethod:
    if Panels.runs(ops.name, dtype):
        return Panels()
    return OneDNN(ops) if OneDNN.runs(ops.name, dtype) else Unquantized(ops)
