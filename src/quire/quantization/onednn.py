"""Weights in the layout that oneDNN multiplies from, where torch multiplies: faster than row by row (docs/lab.md)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from quire.kernels.torch_ops import cpu_capabilities, multiplies_natively
from quire.quantization.method import StoredWeight, Unquantized, load_dense, plus_residual

PACKED_FOR_ROWS = 32
"""The layout hardly depends on it: what was packed for 32 rows is as fast at 1 and at 2,048."""


class OneDNN(Unquantized):
    """Values and dtype stay; only their order in memory changes. The loaded weight is dropped."""

    @staticmethod
    def multiplies(dtype: torch.dtype) -> bool:
        """Where this CPU multiplies in the dtype itself."""
        return torch._C._has_mkldnn and multiplies_natively(dtype, cpu_capabilities())

    def load(self, parts: Sequence[StoredWeight], dtype: torch.dtype) -> torch.Tensor:
        packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(
            load_dense(parts, dtype, self._ops.tensors), PACKED_FOR_ROWS
        )
        return packed

    def apply(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        y: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        summed: torch.Tensor = plus_residual(y, residual)
        return summed
