"""Qwen3 (Yang et al. 2025), dense: Llama's layers, with an RMSNorm on each head of q and k before they are rotated.

Shapes: T tokens of the step, D hidden_size, I intermediate_size, H heads, G key/value heads, E head_dim, V vocab_size.
Tensors as in Llama, and q_norm, k_norm [E]. H E need not be D.
"""

from __future__ import annotations

from quire.models import llama
from quire.models.decoder import Decoder
from quire.models.parts import ModelParts


def build(parts: ModelParts) -> Decoder:
    return llama.build(parts)
