"""Norms, rotation and activations in native kernels.

Native attention is in attention/cpu_backend.py, native linear layers are in quantization/. What is looked up in a table of
floats (learned positions) is copied by torch.
"""

from __future__ import annotations

import torch

from quire.kernels import native, native_rows
from quire.kernels.torch_ops import TorchOps


class CpuOps(TorchOps):
    name = "cpu"

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return native.rms_norm(x, weight, eps)

    def layer_norm(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float) -> torch.Tensor:
        return native_rows.layer_norm(x, weight, bias, eps)

    def rope(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        return native.rope_(x, cos, sin)

    def activate(self, x: torch.Tensor, kind: str) -> torch.Tensor:
        return native_rows.activate(x, kind)

    def gated(self, gate: torch.Tensor, up: torch.Tensor, kind: str) -> torch.Tensor:
        return native.gated(gate, up, kind)
