"""Native kernels where there are some, torch operators elsewhere. So far attention alone is native (attention/cpu_backend)."""

from __future__ import annotations

from quire.kernels.torch_ops import TorchOps


class CpuOps(TorchOps):
    name = "cpu"
