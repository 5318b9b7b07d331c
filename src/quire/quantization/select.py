"""The table of ways to keep a weight."""

from __future__ import annotations

import torch

from quire.core.quantization import Quantization
from quire.kernels.ops import Ops
from quire.quantization.method import QuantMethod, Unquantized
from quire.quantization.onednn import OneDNN
from quire.quantization.panels import Panels
from quire.quantization.stored import Stored


def select_method(ops: Ops, dtype: torch.dtype, quantization: Quantization) -> QuantMethod:
    """How linear layers keep their weights with these operators: as the fastest that multiplies this dtype wants them."""
    method = _method_for_floats(ops, dtype)
    return Stored(method) if quantization == "stored" else method


def _method_for_floats(ops: Ops, dtype: torch.dtype) -> QuantMethod:
    if Panels.runs(ops.name, dtype):
        return Panels()
    return OneDNN(ops) if OneDNN.runs(ops.name, dtype) else Unquantized(ops)
