"""The operators models are written in. One signature an op; `reference` and `torch` fill the table.

No op sees the batch: rows are independent. In `reference` that holds bit for bit (ADR 5): each row's arithmetic is
the same whatever the other rows are and however many there are.
"""

from __future__ import annotations

from typing import Protocol

import torch


class Ops(Protocol):
    """All ops take and return tensors of the model's dtype; T is the number of tokens in the step."""

    name: str

    def embedding(self, token_ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """int64 [T], [V, D] -> [T, D]."""

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """[T, K], [N, K], [N] -> x @ weight.T + bias [T, N]."""

    def logits(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """[L, D], [V, D] -> x @ weight.T, float32 [L, V], not rounded to the model's dtype on the way.

        At a logit of 16 the step of bfloat16 is 0.125: enough to make two likely tokens equal.
        """

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """x / rms(x) * weight over the last dimension, in float32 inside (Zhang and Sennrich 2019)."""

    def layer_norm(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float) -> torch.Tensor:
        """(x - mean) / std * weight + bias over the last dimension (Ba et al. 2016)."""

    def rope(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """[T, heads, head_dim] rotated by halves; cos, sin [T, rotary_dim / 2]; the rest of head_dim passes through.

        x is given up: the result may be in its memory.
        """

    def activate(self, x: torch.Tensor, kind: str) -> torch.Tensor:
        """silu, gelu, gelu_tanh or relu, element by element."""

    def gated(self, gate: torch.Tensor, up: torch.Tensor, kind: str) -> torch.Tensor:
        """activate(gate) * up (Shazeer 2020)."""
