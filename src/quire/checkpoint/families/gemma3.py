"""Gemma 3, text: sandwich norms, q/k norms, five sliding layers to a full one, a rotary base for each of the two."""

from __future__ import annotations

import math
from dataclasses import replace

from quire.checkpoint.families.decoder import FULL, SLIDING, read_decoder, read_layer_types
from quire.checkpoint.families.fields import ConfigFields
from quire.checkpoint.families.gguf_decoder import read_gguf_decoder
from quire.checkpoint.families.gguf_header import GGUFHeader
from quire.checkpoint.families.gguf_names import QK_NORM_NAMES, TensorRule, gated_names
from quire.checkpoint.families.rope import read_rope_scaling
from quire.checkpoint.model_config import LayerConfig, ModelConfig, RopeConfig

ARCHITECTURE = "Gemma3ForCausalLM"
FULL_THETA = 1_000_000.0
SLIDING_THETA = 10_000.0
PATTERN = 6
"""Every sixth layer is full."""
DEFAULT_HEAD_DIM = 256
LAYERS_OF_27B = 62


def read(fields: ConfigFields) -> ModelConfig:
    fields.must_be("use_bidirectional_attention", False)
    config = read_decoder(
        fields,
        "gemma3",
        ARCHITECTURE,
        head_dim=fields.integer("head_dim", DEFAULT_HEAD_DIM),
        activation_field="hidden_activation",
        default_activation="gelu_pytorch_tanh",
    )
    # Gemma's own number counts position interpolation already.
    config = replace(config, max_position=fields.integer("max_position_embeddings"))
    pattern = fields.integer("sliding_window_pattern", PATTERN)
    kinds = read_layer_types(fields, config.num_layers) or _kinds(config.num_layers, pattern)
    window = fields.integer("sliding_window", 4096) if SLIDING in kinds else None
    bias = fields.flag("attention_bias", False)
    return replace(
        _gemma3(
            config, kinds, window, full=_read_rope(fields, config, FULL), sliding=_read_rope(fields, config, SLIDING)
        ),
        attention_bias=bias,
        attention_output_bias=bias,
        attention_scale=fields.number("query_pre_attn_scalar", 256) ** -0.5,
        attention_logit_softcap=fields.optional_number("attn_logit_softcapping"),
        final_logit_softcap=fields.optional_number("final_logit_softcapping"),
        tie_word_embeddings=fields.flag("tie_word_embeddings", True),
    )


def read_gguf(header: GGUFHeader) -> ModelConfig:
    config = read_gguf_decoder(header, "gemma3", ARCHITECTURE, activation="gelu_tanh", default_theta=FULL_THETA)
    fields = header.fields
    full = config.layers[0].rope
    assert full is not None, "the decoder above is rotary"
    # Position interpolation of the larger models is for the full layers only.
    sliding = RopeConfig(theta=fields.number("rope.freq_base_swa", SLIDING_THETA), rotary_dim=config.head_dim)
    window = fields.integer("attention.sliding_window")
    config = _gemma3(config, _read_gguf_kinds(fields, config.num_layers), window, full=full, sliding=sliding)
    # The file leaves out query_pre_attn_scalar. It is the size of a head in all models but the 27B.
    scale_size = config.hidden_size // config.num_heads if config.num_layers == LAYERS_OF_27B else config.head_dim
    return replace(
        config,
        attention_scale=scale_size**-0.5,
        attention_logit_softcap=fields.optional_number("attn_logit_softcapping"),
        final_logit_softcap=fields.optional_number("final_logit_softcapping"),
    )


def gguf_names(config: ModelConfig) -> list[TensorRule]:
    """GGUF stores 1 + w of each norm where Hugging Face stores w."""
    sandwich_norms = [
        TensorRule("blk.{}.post_attention_norm", "model.layers.{}.post_attention_layernorm"),
        TensorRule("blk.{}.ffn_norm", "model.layers.{}.pre_feedforward_layernorm"),
        TensorRule("blk.{}.post_ffw_norm", "model.layers.{}.post_feedforward_layernorm"),
    ]
    rules = {rule.gguf: rule for rule in gated_names() + QK_NORM_NAMES + sandwich_norms}
    return [replace(rule, offset=-1.0) if rule.gguf.endswith("norm") else rule for rule in rules.values()]


def _kinds(num_layers: int, pattern: int) -> list[str]:
    return [SLIDING if (layer + 1) % pattern else FULL for layer in range(num_layers)]


def _read_gguf_kinds(fields: ConfigFields, num_layers: int) -> list[str]:
    """The pattern is a period, or true for each layer that slides."""
    flags = fields.flags("attention.sliding_window_pattern")
    if flags is not None:
        if len(flags) != num_layers:
            raise fields.damaged("attention.sliding_window_pattern", f"{num_layers} flags, one a layer")
        return [SLIDING if slides else FULL for slides in flags]
    return _kinds(num_layers, fields.integer("attention.sliding_window_pattern", PATTERN))


def _read_rope(fields: ConfigFields, config: ModelConfig, kind: str) -> RopeConfig:
    """transformers 5 nests rope_parameters by layer type; before, rope_scaling was for the full layers only."""
    by_kind = fields.section("rope_parameters")
    parameters = by_kind.section(kind) if by_kind is not None else None
    if kind == FULL:
        theta = fields.number("rope_theta", FULL_THETA)
        parameters = fields.section("rope_scaling") or parameters
    else:
        theta = fields.number("rope_local_base_freq", SLIDING_THETA)
    if parameters is None:
        return RopeConfig(theta=theta, rotary_dim=config.head_dim)
    return RopeConfig(
        theta=parameters.number("rope_theta", theta),
        rotary_dim=config.head_dim,
        scaling=read_rope_scaling(parameters, config.max_position),
    )


def _gemma3(
    config: ModelConfig, kinds: list[str], window: int | None, *, full: RopeConfig, sliding: RopeConfig
) -> ModelConfig:
    """What all Gemma 3 models have beyond the shared decoder."""
    layers = {FULL: LayerConfig(window=None, rope=full), SLIDING: LayerConfig(window=window, rope=sliding)}
    return replace(
        config,
        layers=tuple(layers[kind] for kind in kinds),
        qk_norm=True,
        sandwich_norm=True,
        embedding_scale=math.sqrt(config.hidden_size),
    )
