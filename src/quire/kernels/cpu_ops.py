"""Native kernels where there are some, torch operators elsewhere. Native attention is in attention/cpu_backend."""

from __future__ import annotations

import torch

from quire.kernels import native
from quire.kernels.torch_ops import TorchOps


class CpuOps(TorchOps):
    name = "cpu"

    def logits(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return native.logits(x, weight)
