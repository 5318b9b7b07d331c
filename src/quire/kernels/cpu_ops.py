"""Native kernels where there are some, torch operators elsewhere.

Native attention is in attention/cpu_backend.py, native linear layers are in quantization/.
"""

from __future__ import annotations

import torch

from quire.kernels import native
from quire.kernels.torch_ops import TorchOps


class CpuOps(TorchOps):
    name = "cpu"

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return native.rms_norm(x, weight, eps)

    def rope(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        return native.rope_(x, cos, sin)

    def gated(self, gate: torch.Tensor, up: torch.Tensor, kind: str) -> torch.Tensor:
        return native.gated(gate, up, kind) if kind in native.GATES else super().gated(gate, up, kind)
