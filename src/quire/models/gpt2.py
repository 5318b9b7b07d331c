"""GPT-2 (Radford et al. 2019): LayerNorm, a plain MLP, learned positions, q, k and v in one tensor.

Shapes: T tokens of the step, D n_embd, I n_inner, P n_positions, V vocab_size. Checkpoints hold linear weights
inputs first (see `registry`); in memory they are outputs first:
  wte, lm_head [V, D]   wpe [P, D]
  c_attn [3 D, D]   c_proj [D, D]   c_fc [I, D]   mlp.c_proj [D, I], each with a bias
  norms [D], weight and bias
"""

from __future__ import annotations

from quire.models.decoder import Decoder, PreNormLayer
from quire.models.parts import ModelParts


def build(parts: ModelParts) -> Decoder:
    embedding = parts.embedding("transformer.wte")
    return Decoder(
        config=parts.config,
        embedding=embedding,
        positions=parts.positions("transformer.wpe"),
        layers=[_layer(parts, layer) for layer in range(parts.config.num_layers)],
        final_norm=parts.norm("transformer.ln_f"),
        head=parts.head("lm_head", embedding),
    )


def _layer(parts: ModelParts, layer: int) -> PreNormLayer:
    prefix = f"transformer.h.{layer}."
    return PreNormLayer(
        attention_norm=parts.norm(prefix + "ln_1"),
        attention=parts.attention(layer, qkv=[prefix + "attn.c_attn"], output=prefix + "attn.c_proj"),
        mlp_norm=parts.norm(prefix + "ln_2"),
        mlp=parts.mlp(up=prefix + "mlp.c_fc", down=prefix + "mlp.c_proj"),
    )
