"""The fastest that plain torch operators give on a CPU. Rows are independent in value, not bit for bit."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from quire.kernels.activation import ACTIVATIONS


class TorchOps:
    name = "torch"

    def embedding(self, token_ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return weight.index_select(0, token_ids)

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return F.linear(x, weight, bias)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return F.rms_norm(x, weight.shape, weight, eps)

    def layer_norm(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float) -> torch.Tensor:
        return F.layer_norm(x, weight.shape, weight, bias, eps)

    def rope(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        half = cos.shape[-1]
        cos, sin = cos.to(x.dtype).unsqueeze(1), sin.to(x.dtype).unsqueeze(1)
        first, second = x[..., :half], x[..., half : 2 * half]
        return torch.cat((first * cos - second * sin, second * cos + first * sin, x[..., 2 * half :]), -1)

    def activate(self, x: torch.Tensor, kind: str) -> torch.Tensor:
        return ACTIVATIONS[kind](x)

    def gated(self, gate: torch.Tensor, up: torch.Tensor, kind: str) -> torch.Tensor:
        return ACTIVATIONS[kind](gate).mul_(up)
