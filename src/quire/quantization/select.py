"""The table of ways to keep a weight."""

from __future__ import annotations

import torch

from quire.kernels.ops import Ops
from quire.quantization.method import QuantMethod, Unquantized
from quire.quantization.packed import Packed


def select_method(ops: Ops, dtype: torch.dtype) -> QuantMethod:
    """How linear layers keep their weights with these operators: packed where the machine multiplies from that."""
    return Packed() if Packed.runs(ops.name, dtype) else Unquantized(ops)
