"""Qwen2 and Qwen2.5: Llama with biases on q, k and v; optionally a sliding window in the upper layers."""

from __future__ import annotations

from dataclasses import replace

from quire.checkpoint.families.decoder import FULL, SLIDING, read_decoder, read_layer_types, read_window
from quire.checkpoint.families.fields import ConfigFields
from quire.checkpoint.families.gguf_decoder import read_gguf_decoder
from quire.checkpoint.families.gguf_header import GGUFHeader
from quire.checkpoint.families.gguf_names import TensorRule, gated_names
from quire.checkpoint.model_config import LayerConfig, ModelConfig

ARCHITECTURE = "Qwen2ForCausalLM"


def read(fields: ConfigFields) -> ModelConfig:
    config = read_decoder(fields, "qwen2", ARCHITECTURE)
    return replace(config, attention_bias=True, layers=read_windowed_layers(fields, config))


def read_windowed_layers(fields: ConfigFields, config: ModelConfig) -> tuple[LayerConfig, ...]:
    """Without `layer_types`, the layers from `max_window_layers` on slide, and only if `use_sliding_window` is true."""
    window = read_window(fields) if fields.flag("use_sliding_window", False) else None
    kinds = read_layer_types(fields, config.num_layers)
    if kinds is None:
        first = config.num_layers if window is None else fields.integer("max_window_layers", minimum=0)
        kinds = [SLIDING if layer >= first else FULL for layer in range(config.num_layers)]
    if window is None and SLIDING in kinds:
        raise fields.damaged("layer_types", "without sliding layers where use_sliding_window is false")
    return tuple(
        replace(layer, window=window if kind == SLIDING else None)
        for layer, kind in zip(config.layers, kinds, strict=True)
    )


def read_gguf(header: GGUFHeader) -> ModelConfig:
    header.fields.must_be_absent("attention.sliding_window")
    return replace(read_gguf_decoder(header, "qwen2", ARCHITECTURE), attention_bias=True)


def gguf_names(config: ModelConfig) -> list[TensorRule]:
    return gated_names()
