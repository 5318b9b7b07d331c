"""The operators models are written in. One signature an op; `cpu`, `torch` and `reference` have all of them.

No op sees the batch: rows are independent. In `cpu` and `reference` that holds bit for bit (ADR 5): each row's arithmetic
is the same whatever the other rows are and however many there are.
"""

from __future__ import annotations

from typing import Any, Protocol

from quire.kernels.tensor import Tensors


class Ops(Protocol):
    """All ops take and return tensors of the model's dtype; T is the number of tokens in the step."""

    name: str
    tensors: Tensors
    """Makes what the ops take: all of one kind."""

    def use_num_threads(self, count: int) -> None:
        """For what is computed on this thread from now on."""

    def embedding(self, token_ids: Any, weight: Any) -> Any:
        """int64 [T], [V, D] -> [T, D]."""

    def rms_norm(self, x: Any, weight: Any, eps: float, residual: Any | None = None) -> Any:
        """x / rms(x) * weight over the last dimension, in float32 inside (Zhang and Sennrich 2019).

        `residual`, of x [T, D], is added before the result is rounded; it is given up: the result may be in its memory.
        """

    def layer_norm(self, x: Any, weight: Any, bias: Any | None, eps: float) -> Any:
        """(x - mean) / std * weight + bias over the last dimension (Ba et al. 2016)."""

    def rope(self, x: Any, cos: Any, sin: Any) -> Any:
        """[T, heads, head_dim] rotated by halves; cos, sin [T, rotary_dim / 2]; the rest of head_dim passes through.

        x is given up: the result may be in its memory.
        """

    def activate(self, x: Any, kind: str) -> Any:
        """silu, gelu, gelu_tanh or relu, element by element."""

    def gated(self, gate: Any, up: Any, kind: str) -> Any:
        """activate(gate) * up (Shazeer 2020)."""

    def softcap(self, logits: Any, cap: float) -> Any:
        """tanh(logits / cap) * cap of float32 [L, V] (Gemma Team 2024); logits are given up."""


class DenseOps(Ops, Protocol):
    """Of torch's tensors, with products of them. The native kernels multiply weights that they packed (quantization/)."""

    def linear(self, x: Any, weight: Any, bias: Any | None) -> Any:
        """[T, K], [N, K], [N] -> x @ weight.T + bias [T, N]."""

    def logits(self, x: Any, weight: Any) -> Any:
        """[L, D], [V, D] -> x @ weight.T, float32 [L, V], not rounded to the model's dtype on the way.

        At a logit of 16 the step of bfloat16 is 0.125: enough to make two likely tokens equal.
        """
