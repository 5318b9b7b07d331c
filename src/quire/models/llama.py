"""Llama (Touvron et al. 2023; Llama 3: 2024).

Shapes: T tokens of the step, D hidden_size, I intermediate_size, H heads, G key/value heads, E head_dim, V vocab_size.
  embed_tokens, lm_head  [V, D]
  q_proj [H E, D]   k_proj, v_proj [G E, D]   o_proj [D, H E]
  gate_proj, up_proj [I, D]   down_proj [D, I]
  norms [D]
"""

from __future__ import annotations

from quire.models.decoder import Decoder, PreNormLayer
from quire.models.parts import ModelParts


def build(parts: ModelParts) -> Decoder:
    embedding = parts.embedding("model.embed_tokens")
    return Decoder(
        config=parts.config,
        embedding=embedding,
        layers=[_layer(parts, layer) for layer in range(parts.config.num_layers)],
        final_norm=parts.norm("model.norm"),
        head=parts.head("lm_head", embedding),
        ropes=parts.ropes(),
    )


def _layer(parts: ModelParts, layer: int) -> PreNormLayer:
    prefix = f"model.layers.{layer}."
    attention, mlp = prefix + "self_attn.", prefix + "mlp."
    return PreNormLayer(
        attention_norm=parts.norm(prefix + "input_layernorm"),
        attention=parts.attention(
            layer,
            qkv=[attention + "q_proj", attention + "k_proj", attention + "v_proj"],
            output=attention + "o_proj",
            qk_norm=(attention + "q_norm", attention + "k_norm") if parts.config.qk_norm else None,
        ),
        mlp_norm=parts.norm(prefix + "post_attention_layernorm"),
        mlp=parts.gated_mlp(gate=mlp + "gate_proj", up=mlp + "up_proj", down=mlp + "down_proj"),
    )
