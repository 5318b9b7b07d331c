"""The table of ways to keep a weight."""

from __future__ import annotations

import torch

from quire.core.quantization import Quantization
from quire.kernels.ops import Ops
from quire.quantization.method import QuantMethod, Unquantized
from quire.quantization.packed import Packed
from quire.quantization.stored import Stored


def select_method(ops: Ops, dtype: torch.dtype, quantization: Quantization) -> QuantMethod:
    """How linear layers keep their weights with these operators: packed where the machine multiplies from that."""
    method = Packed(ops) if Packed.runs(ops.name, dtype) else Unquantized(ops)
    return Stored(method) if quantization == "stored" else method
