"""Mistral: Llama with a sliding window in every layer (null: none), and no biases. Its GGUF files say `llama`."""

from __future__ import annotations

from dataclasses import replace

from quire.checkpoint.families.decoder import FULL, SLIDING, read_decoder, read_layer_types, read_window
from quire.checkpoint.families.fields import ConfigFields
from quire.checkpoint.model_config import ModelConfig

ARCHITECTURE = "MistralForCausalLM"


def read(fields: ConfigFields) -> ModelConfig:
    config = read_decoder(fields, "mistral", ARCHITECTURE)
    window = read_window(fields)
    kinds = read_layer_types(fields, config.num_layers) or [SLIDING if window else FULL] * config.num_layers
    if set(kinds) != {SLIDING if window else FULL}:
        raise fields.unsupported(
            "layer_types", f"one type for all layers in Mistral, here {SLIDING if window else FULL}"
        )
    return replace(config, layers=tuple(replace(layer, window=window) for layer in config.layers))
