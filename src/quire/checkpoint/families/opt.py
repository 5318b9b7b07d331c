"""OPT: LayerNorm, biases everywhere, learned positions from row 2 on. There is no GGUF of it."""

from __future__ import annotations

from quire.checkpoint.families.decoder import ACTIVATIONS, MAX_LAYERS, full_layers, read_dtype, split_heads
from quire.checkpoint.families.fields import ConfigFields
from quire.checkpoint.model_config import ModelConfig

ARCHITECTURE = "OPTForCausalLM"
POSITION_OFFSET = 2
NORM_EPS = 1e-5


def read(fields: ConfigFields) -> ModelConfig:
    fields.must_be("layer_norm_elementwise_affine", True)
    hidden_size = fields.integer("hidden_size")
    num_heads = fields.integer("num_attention_heads")
    num_layers = fields.integer("num_hidden_layers", maximum=MAX_LAYERS)
    head_dim = split_heads(fields, "hidden_size", hidden_size, num_heads)
    embedding_dim = fields.integer("word_embed_proj_dim", hidden_size)
    norm_before = fields.flag("do_layer_norm_before", True)
    bias = fields.flag("enable_bias", True)
    return ModelConfig(
        family="opt",
        architecture=ARCHITECTURE,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("ffn_dim"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=head_dim,
        max_position=fields.integer("max_position_embeddings"),
        layers=full_layers(num_layers, rope=None),
        activation=fields.choice("activation_function", ACTIVATIONS, "relu"),
        norm="layer_norm",
        norm_eps=NORM_EPS,
        attention_scale=head_dim**-0.5,
        tie_word_embeddings=fields.flag("tie_word_embeddings", True),
        attention_bias=bias,
        attention_output_bias=bias,
        mlp_bias=bias,
        gated_mlp=False,
        norm_before=norm_before,
        final_norm=norm_before and not fields.flag("_remove_final_layer_norm", False),
        embedding_dim=None if embedding_dim == hidden_size else embedding_dim,
        position_offset=POSITION_OFFSET,
        torch_dtype=read_dtype(fields),
        bos_token_id=fields.optional_integer("bos_token_id", minimum=0),
        eos_token_ids=fields.token_ids("eos_token_id"),
    )
