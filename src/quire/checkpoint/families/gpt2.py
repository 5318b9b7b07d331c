"""GPT-2: LayerNorm, one fused q, k, v projection, learned positions, weights stored inputs first."""

from __future__ import annotations

from dataclasses import replace

from quire.checkpoint.families.decoder import ACTIVATIONS, MAX_LAYERS, full_layers, read_dtype, split_heads
from quire.checkpoint.families.fields import ConfigFields
from quire.checkpoint.families.gguf_decoder import read_gguf_decoder
from quire.checkpoint.families.gguf_header import GGUFHeader
from quire.checkpoint.families.gguf_names import TensorRule
from quire.checkpoint.model_config import ModelConfig

ARCHITECTURE = "GPT2LMHeadModel"


def read(fields: ConfigFields) -> ModelConfig:
    fields.must_be("add_cross_attention", False)
    hidden_size = fields.integer("n_embd")
    num_heads = fields.integer("n_head")
    head_dim = split_heads(fields, "n_embd", hidden_size, num_heads)
    num_layers = fields.integer("n_layer", maximum=MAX_LAYERS)
    return ModelConfig(
        family="gpt2",
        architecture=ARCHITECTURE,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("n_inner", 4 * hidden_size),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=head_dim,
        max_position=fields.integer("n_positions"),
        layers=full_layers(num_layers, rope=None),
        activation=fields.choice("activation_function", ACTIVATIONS, "gelu_new"),
        norm="layer_norm",
        norm_eps=fields.number("layer_norm_epsilon", 1e-5),
        attention_scale=head_dim**-0.5 if fields.flag("scale_attn_weights", True) else 1.0,
        inverse_layer_scale=fields.flag("scale_attn_by_inverse_layer_idx", False),
        tie_word_embeddings=fields.flag("tie_word_embeddings", True),
        attention_bias=True,
        attention_output_bias=True,
        mlp_bias=True,
        gated_mlp=False,
        torch_dtype=read_dtype(fields),
        bos_token_id=fields.optional_integer("bos_token_id", minimum=0),
        eos_token_ids=fields.token_ids("eos_token_id"),
    )


def read_gguf(header: GGUFHeader) -> ModelConfig:
    config = read_gguf_decoder(
        header, "gpt2", ARCHITECTURE, activation="gelu_tanh", norm_eps="attention.layer_norm_epsilon"
    )
    return replace(
        config,
        layers=full_layers(config.num_layers, rope=None),
        norm="layer_norm",
        attention_bias=True,
        attention_output_bias=True,
        mlp_bias=True,
        gated_mlp=False,
    )


def gguf_names(config: ModelConfig) -> list[TensorRule]:
    """GGUF stores the projections outputs first."""
    layer, block = "transformer.h.{}.", "blk.{}."
    return [
        TensorRule("token_embd", "transformer.wte"),
        TensorRule("position_embd", "transformer.wpe"),
        TensorRule("output_norm", "transformer.ln_f"),
        TensorRule("output", "lm_head"),
        TensorRule(block + "attn_norm", layer + "ln_1"),
        TensorRule(block + "attn_qkv", layer + "attn.c_attn", transposed=True),
        TensorRule(block + "attn_output", layer + "attn.c_proj", transposed=True),
        TensorRule(block + "ffn_norm", layer + "ln_2"),
        TensorRule(block + "ffn_up", layer + "mlp.c_fc", transposed=True),
        TensorRule(block + "ffn_down", layer + "mlp.c_proj", transposed=True),
    ]
