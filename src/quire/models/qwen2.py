"""Qwen2 (Yang et al. 2024) and Qwen2.5: Llama's layers, with biases on q, k and v.

Shapes: T tokens of the step, D hidden_size, I intermediate_size, H heads, G key/value heads, E head_dim, V vocab_size.
Tensors as in Llama, and q_proj.bias [H E], k_proj.bias and v_proj.bias [G E].
"""

from __future__ import annotations

from quire.models import llama
from quire.models.decoder import Decoder
from quire.models.parts import ModelParts


def build(parts: ModelParts) -> Decoder:
    return llama.build(parts)
