"""Llama 1 to 3.x, and what is built like it (SmolLM, TinyLlama, Yi)."""

from __future__ import annotations

from dataclasses import replace

from quire.checkpoint.families.decoder import read_decoder
from quire.checkpoint.families.fields import ConfigFields
from quire.checkpoint.families.gguf_decoder import read_gguf_decoder
from quire.checkpoint.families.gguf_header import GGUFHeader
from quire.checkpoint.families.gguf_names import TensorRule, gated_names
from quire.checkpoint.model_config import ModelConfig

ARCHITECTURE = "LlamaForCausalLM"


def read(fields: ConfigFields) -> ModelConfig:
    config = read_decoder(fields, "llama", ARCHITECTURE)
    bias = fields.flag("attention_bias", False)
    return replace(config, attention_bias=bias, attention_output_bias=bias, mlp_bias=fields.flag("mlp_bias", False))


def read_gguf(header: GGUFHeader) -> ModelConfig:
    """Mistral's GGUF files name this architecture too; a sliding window, if one is named, holds for all layers."""
    config = read_gguf_decoder(header, "llama", ARCHITECTURE)
    window = header.fields.optional_integer("attention.sliding_window", minimum=0) or None
    return replace(
        config,
        layers=tuple(replace(layer, window=window) for layer in config.layers),
        attention_bias=header.has("blk.0.attn_q.bias"),
        attention_output_bias=header.has("blk.0.attn_output.bias"),
        mlp_bias=header.has("blk.0.ffn_up.bias"),
    )


def gguf_names(config: ModelConfig) -> list[TensorRule]:
    """GGUF pairs the rows of q and k that rotate together; Hugging Face keeps the two halves apart."""
    return gated_names(num_heads=config.num_heads, num_kv_heads=config.num_kv_heads)
