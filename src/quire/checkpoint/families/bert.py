"""BERT encoders: LayerNorm after the residual, biases everywhere, learned positions, token types. GGUF is not read."""

from __future__ import annotations

from quire.checkpoint.families.decoder import ACTIVATIONS, MAX_LAYERS, full_layers, read_dtype, split_heads
from quire.checkpoint.families.fields import ConfigFields
from quire.checkpoint.model_config import ModelConfig, PoolingConfig

ARCHITECTURE = "BertModel"


def read(fields: ConfigFields) -> ModelConfig:
    """`pooling` is what a model without sentence-transformers' files gets; see `quire.checkpoint.pooling`."""
    fields.must_be("position_embedding_type", "absolute")
    fields.must_be("is_decoder", False)
    fields.must_be("add_cross_attention", False)
    hidden_size = fields.integer("hidden_size")
    num_heads = fields.integer("num_attention_heads")
    num_layers = fields.integer("num_hidden_layers", maximum=MAX_LAYERS)
    head_dim = split_heads(fields, "hidden_size", hidden_size, num_heads)
    max_position = fields.integer("max_position_embeddings")
    return ModelConfig(
        family="bert",
        architecture=ARCHITECTURE,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=head_dim,
        max_position=max_position,
        layers=full_layers(num_layers, rope=None),
        activation=fields.choice("hidden_act", ACTIVATIONS, "gelu"),
        norm="layer_norm",
        norm_eps=fields.number("layer_norm_eps", 1e-12),
        attention_scale=head_dim**-0.5,
        tie_word_embeddings=True,
        attention_bias=True,
        attention_output_bias=True,
        mlp_bias=True,
        gated_mlp=False,
        norm_before=False,
        final_norm=False,
        num_token_types=fields.integer("type_vocab_size", 2),
        embedding_norm=True,
        pooling=PoolingConfig(kind="mean", normalize=True, max_tokens=max_position),
        torch_dtype=read_dtype(fields),
    )
