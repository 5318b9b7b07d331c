"""OPT (Zhang et al. 2022): LayerNorm, a plain MLP, learned positions. The 350m model normalizes after the residual.

Shapes: T tokens of the step, D hidden_size, I ffn_dim, W word_embed_proj_dim (D but for the 350m), P positions, V vocab_size.
  embed_tokens, lm_head [V, W]   embed_positions [P + 2, D]
  project_in [D, W], project_out [W, D] where W is not D
  q_proj, k_proj, v_proj, out_proj [D, D]   fc1 [I, D]   fc2 [D, I]
  norms [D], weight and bias
"""

from __future__ import annotations

from quire.models.decoder import Decoder, DecoderLayer, PostNormLayer, PreNormLayer
from quire.models.parts import ModelParts

PREFIX = "model.decoder."


def build(parts: ModelParts) -> Decoder:
    config = parts.config
    width = config.embedding_dim
    size = config.hidden_size
    embedding = parts.embedding(PREFIX + "embed_tokens")
    return Decoder(
        config=config,
        embedding=embedding,
        positions=parts.positions(PREFIX + "embed_positions"),
        input_projection=parts.linear([PREFIX + "project_in"], [size], width, bias=False) if width else None,
        layers=[_layer(parts, layer) for layer in range(config.num_layers)],
        final_norm=parts.norm(PREFIX + "final_layer_norm") if config.final_norm else None,
        head=parts.head(
            "lm_head",
            embedding,
            projection=parts.linear([PREFIX + "project_out"], [width], size, bias=False) if width else None,
        ),
    )


def _layer(parts: ModelParts, layer: int) -> DecoderLayer:
    prefix = f"{PREFIX}layers.{layer}."
    names = prefix + "self_attn."
    # Of a layer's two norms the second is named final_layer_norm too.
    attention_norm = parts.norm(prefix + "self_attn_layer_norm")
    mlp_norm = parts.norm(prefix + "final_layer_norm")
    attention = parts.attention(
        layer, qkv=[names + "q_proj", names + "k_proj", names + "v_proj"], output=names + "out_proj"
    )
    kind = PreNormLayer if parts.config.norm_before else PostNormLayer
    return kind(
        attention_norm=attention_norm,
        attention=attention,
        mlp_norm=mlp_norm,
        mlp=parts.mlp(up=prefix + "fc1", down=prefix + "fc2"),
    )
