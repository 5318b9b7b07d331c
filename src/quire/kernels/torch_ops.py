"""The fastest that plain torch operators give on a CPU. Rows are independent in value, not bit for bit."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from quire.kernels.activation import ACTIVATIONS, softcap_rows
from quire.kernels.torch_tensors import TorchTensors

NATIVE_CAPABILITIES = {
    torch.bfloat16: ("avx512_bf16", "amx_bf16", "arm_bf16"),
    torch.float16: ("amx_fp16", "avx512_fp16"),
}
"""CPU features with which the library multiplies in this dtype itself; without them it is slower than in float32."""

MIN_ROWS_TO_WIDEN = {torch.bfloat16: 16, torch.float16: 4}
"""From so many rows on, widening the weight to float32 first costs less than the slow product (docs/lab.md)."""

NUM_WIDENED = 1 << 19
"""Weights widened at a time: 2 MiB, so that the product finds them in the cache."""
NUM_WIDENED_MANY_ROWS = 1 << 22
"""The same for MANY_ROWS and more, where fewer, larger products pay: 16 MiB."""
MANY_ROWS = 128


def cpu_capabilities() -> frozenset[str]:
    return frozenset(name for name, present in torch.cpu.get_capabilities().items() if present is True)


def multiplies_natively(dtype: torch.dtype, capabilities: frozenset[str]) -> bool:
    """Whether the library multiplies in this dtype itself, on a CPU with these features."""
    return dtype == torch.float32 or not capabilities.isdisjoint(NATIVE_CAPABILITIES[dtype])


class TorchOps:
    """Keeps one float32 buffer, in which weights of half precision are widened chunk by chunk; no second copy of them.

    Not for use by two threads at once.
    """

    name = "torch"

    def __init__(self, capabilities: frozenset[str] | None = None) -> None:
        """`capabilities` are the CPU features to count on (default: those of this machine)."""
        if capabilities is None:
            capabilities = cpu_capabilities()
        self._min_rows_to_widen = {
            dtype: num_rows
            for dtype, num_rows in MIN_ROWS_TO_WIDEN.items()
            if not multiplies_natively(dtype, capabilities)
        }
        self._widened = torch.empty(0)
        self.tensors = TorchTensors()

    def use_num_threads(self, count: int) -> None:
        torch.set_num_threads(count)

    def embedding(self, token_ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return weight.index_select(0, token_ids)

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        min_rows = self._min_rows_to_widen.get(x.dtype)
        if min_rows is None or x.shape[0] < min_rows:
            return F.linear(x, weight, bias)
        y = self._widened_matmul(x, weight, x.dtype)
        return y if bias is None else y.add_(bias)

    def logits(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        if x.dtype == torch.float32:
            return F.linear(x, weight)
        return self._widened_matmul(x, weight, torch.float32)

    def _widened_matmul(self, x: torch.Tensor, weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """x @ weight.T in float32, some outputs at a time, each rounded to `dtype`."""
        num_outputs, num_features = weight.shape
        num_widened = NUM_WIDENED if x.shape[0] < MANY_ROWS else NUM_WIDENED_MANY_ROWS
        chunk = min(num_outputs, max(1, num_widened // num_features))
        if self._widened.numel() < chunk * num_features:
            self._widened = torch.empty(chunk * num_features)
        x32 = x.float()
        y = x.new_empty(x.shape[0], num_outputs, dtype=dtype)
        for first in range(0, num_outputs, chunk):
            part = weight[first : first + chunk]
            widened = self._widened[: part.numel()].view_as(part).copy_(part)
            y[:, first : first + chunk] = x32 @ widened.t()
        return y

    def rms_norm(
        self, x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        x32 = x.float()
        # The norm is one fused pass; F.rms_norm materializes the squares (docs/lab.md).
        norm: torch.Tensor = torch.linalg.vector_norm(x32, dim=-1, keepdim=True)
        scale = norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        y = (x32 * scale).mul_(weight)
        return (y if residual is None else y.add_(residual)).to(x.dtype)

    def layer_norm(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float) -> torch.Tensor:
        return F.layer_norm(x, weight.shape, weight, bias, eps)

    def rope(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        half = cos.shape[-1]
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
        rotated = (torch.addcmul(first * cos, second, sin, value=-1), torch.addcmul(second * cos, first, sin))
        return torch.cat((*rotated, rest), -1)

    def activate(self, x: torch.Tensor, kind: str) -> torch.Tensor:
        return ACTIVATIONS[kind](x)

    def gated(self, gate: torch.Tensor, up: torch.Tensor, kind: str) -> torch.Tensor:
        return ACTIVATIONS[kind](gate).mul_(up)

    def softcap(self, logits: torch.Tensor, cap: float) -> torch.Tensor:
        return softcap_rows(logits, cap)
