"""Mistral 7B (Jiang et al. 2023): Llama's layers, with a sliding window of attention.

Shapes: T tokens of the step, D hidden_size, I intermediate_size, H heads, G key/value heads, E head_dim, V vocab_size.
Tensors as in Llama; position p sees p - window + 1 ... p.
"""

from __future__ import annotations

from quire.models import llama
from quire.models.decoder import Decoder
from quire.models.parts import ModelParts


def build(parts: ModelParts) -> Decoder:
    return llama.build(parts)
