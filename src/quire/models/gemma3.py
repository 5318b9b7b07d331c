"""Gemma 3, text (Gemma Team 2025): norms on both sides of attention and MLP, sliding and full layers in turn.

Shapes: T tokens of the step, D hidden_size, I intermediate_size, H heads, G key/value heads, E head_dim, V vocab_size.
  embed_tokens [V, D], times sqrt(D) on the way in; lm_head is the same tensor
  q_proj [H E, D]   k_proj, v_proj [G E, D]   o_proj [D, H E]   q_norm, k_norm [E]
  gate_proj, up_proj [I, D]   down_proj [D, I]
  norms [D]; a checkpoint's norm weights are w where the norm multiplies with 1 + w (see `registry`)
"""

from __future__ import annotations

from quire.models.decoder import Decoder, SandwichNormLayer
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


def _layer(parts: ModelParts, layer: int) -> SandwichNormLayer:
    prefix = f"model.layers.{layer}."
    attention, mlp = prefix + "self_attn.", prefix + "mlp."
    return SandwichNormLayer(
        attention_norm=parts.norm(prefix + "input_layernorm"),
        attention=parts.attention(
            layer,
            qkv=[attention + "q_proj", attention + "k_proj", attention + "v_proj"],
            output=attention + "o_proj",
            qk_norm=(attention + "q_norm", attention + "k_norm"),
        ),
        attention_output_norm=parts.norm(prefix + "post_attention_layernorm"),
        mlp_norm=parts.norm(prefix + "pre_feedforward_layernorm"),
        mlp=parts.gated_mlp(gate=mlp + "gate_proj", up=mlp + "up_proj", down=mlp + "down_proj"),
        mlp_output_norm=parts.norm(prefix + "post_feedforward_layernorm"),
    )
