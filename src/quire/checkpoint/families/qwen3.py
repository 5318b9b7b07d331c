"""Qwen3 (dense): q and k are normalized head by head; biases only where the config asks."""

from __future__ import annotations

from dataclasses import replace

from quire.checkpoint.families.decoder import read_decoder
from quire.checkpoint.families.fields import ConfigFields
from quire.checkpoint.families.gguf_decoder import read_gguf_decoder
from quire.checkpoint.families.gguf_header import GGUFHeader
from quire.checkpoint.families.gguf_names import QK_NORM_NAMES, TensorRule, gated_names
from quire.checkpoint.families.qwen2 import read_windowed_layers
from quire.checkpoint.model_config import ModelConfig

ARCHITECTURE = "Qwen3ForCausalLM"
DEFAULT_HEAD_DIM = 128


def read(fields: ConfigFields) -> ModelConfig:
    head_dim = fields.integer("head_dim", DEFAULT_HEAD_DIM)
    config = read_decoder(fields, "qwen3", ARCHITECTURE, head_dim=head_dim)
    bias = fields.flag("attention_bias", False)
    return replace(
        config,
        attention_bias=bias,
        attention_output_bias=bias,
        qk_norm=True,
        layers=read_windowed_layers(fields, config),
    )


def read_gguf(header: GGUFHeader) -> ModelConfig:
    header.fields.must_be_absent("attention.sliding_window")
    config = read_gguf_decoder(header, "qwen3", ARCHITECTURE)
    bias = header.has("blk.0.attn_q.bias")
    return replace(
        config, attention_bias=bias, attention_output_bias=header.has("blk.0.attn_output.bias"), qk_norm=True
    )


def gguf_names(config: ModelConfig) -> list[TensorRule]:
    return gated_names() + QK_NORM_NAMES
