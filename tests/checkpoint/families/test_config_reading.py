"""config.json as files in the wild have it: older spellings, absent fields, nonsense, and what quire lacks."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.checkpoint.families import read_config
from quire.checkpoint.model_config import LinearRopeScaling, Llama3RopeScaling, ModelConfig
from quire.errors import CheckpointError, UnsupportedModelError

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "max_position_embeddings": 2048,
}
GEMMA3 = LLAMA | {"architectures": ["Gemma3ForCausalLM"], "sliding_window": 512, "head_dim": 16, "num_hidden_layers": 7}
QWEN2 = LLAMA | {"architectures": ["Qwen2ForCausalLM"]}
MISTRAL = LLAMA | {"architectures": ["MistralForCausalLM"]}
OPT = LLAMA | {"architectures": ["OPTForCausalLM"], "ffn_dim": 128}
GPT2 = {
    "architectures": ["GPT2LMHeadModel"],
    "vocab_size": 1000,
    "n_embd": 64,
    "n_layer": 3,
    "n_head": 8,
    "n_positions": 1024,
}
EVERY_FAMILY = [LLAMA, MISTRAL, QWEN2, LLAMA | {"architectures": ["Qwen3ForCausalLM"]}, GEMMA3, OPT, GPT2]


def read(base: dict[str, Any], **fields: object) -> ModelConfig:
    return read_config(base | fields, "config.json")


def windows(config: ModelConfig) -> list[int | None]:
    return [layer.window for layer in config.layers]


def test_defaults_are_those_of_transformers() -> None:
    config = read(LLAMA)
    assert (config.num_kv_heads, config.head_dim, config.activation) == (8, 8, "silu")
    assert config.layers[0].rope is not None
    assert config.layers[0].rope.theta == 10_000.0
    assert not config.tie_word_embeddings
    assert read(OPT).tie_word_embeddings
    assert read(GPT2).tie_word_embeddings
    assert read(GPT2).intermediate_size == 256
    assert read(GEMMA3).tie_word_embeddings


@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "linear", "factor": 2}},
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 5e5, "factor": 2.0}},
    ],
)
def test_old_and_new_rope_spellings(spelling: dict[str, object]) -> None:
    rope = read(LLAMA, **spelling).layers[2].rope
    assert rope is not None
    assert (rope.theta, rope.scaling) == (5e5, LinearRopeScaling(factor=2.0))


def test_llama3_rope_falls_back_to_the_context_length() -> None:
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rope = read(LLAMA, rope_scaling=scaling).layers[0].rope
    assert rope is not None
    assert rope.scaling == Llama3RopeScaling(
        factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position=2048
    )


def test_the_original_context_of_llama3_rope_may_stand_outside() -> None:
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    for within in ({}, {"original_max_position_embeddings": 64}):
        rope = read(LLAMA, rope_scaling=scaling | within, original_max_position_embeddings=32).layers[0].rope
        assert rope is not None
        assert isinstance(rope.scaling, Llama3RopeScaling)
        assert rope.scaling.original_max_position == 32


@pytest.mark.parametrize("empty", [{}, None])
def test_an_empty_rope_scaling_is_none(empty: object) -> None:
    linear = {"rope_type": "linear", "rope_theta": 5e5, "factor": 2.0}
    rope = read(LLAMA, rope_scaling=empty, rope_parameters=linear).layers[0].rope
    assert rope is not None
    assert (rope.theta, rope.scaling) == (5e5, LinearRopeScaling(factor=2.0))
    full = read(GEMMA3, rope_scaling=empty, rope_parameters={"full_attention": linear}).layers[5].rope
    assert full == replace(rope, rotary_dim=16)


def test_interpolated_positions_reach_further() -> None:
    linear = {"type": "linear", "factor": 4.0}
    assert read(LLAMA, rope_scaling=linear).max_position == 8192
    assert read(LLAMA, rope_scaling=linear | {"type": "default"}).max_position == 2048
    assert read(GEMMA3, rope_scaling=linear).max_position == 2048, "there it is counted already"


@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_theta": 5e5, "rope_local_base_freq": 3e4, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 5e5, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 3e4},
            }
        },
    ],
)
def test_gemma3_has_two_rotary_bases(spelling: dict[str, object]) -> None:
    config = read(GEMMA3, **spelling)
    sliding, full = config.layers[0].rope, config.layers[5].rope
    assert sliding is not None
    assert full is not None
    assert (sliding.theta, sliding.scaling) == (3e4, None)
    assert (full.theta, full.scaling) == (5e5, LinearRopeScaling(factor=8.0))


def test_gemma3_window_pattern() -> None:
    assert windows(read(GEMMA3)) == [512] * 5 + [None, 512]
    assert windows(read(GEMMA3, sliding_window_pattern=2)) == [512, None] * 3 + [512]
    assert windows(read(GEMMA3, layer_types=["full_attention"] * 7, sliding_window=None)) == [None] * 7


def test_qwen2_slides_only_when_told_to() -> None:
    assert windows(read(QWEN2, sliding_window=16, max_window_layers=1)) == [None] * 3
    told = {"use_sliding_window": True, "sliding_window": 16}
    assert windows(read(QWEN2, **told, max_window_layers=1)) == [None, 16, 16]
    assert windows(read(QWEN2, use_sliding_window=True, max_window_layers=2)) == [None, None, 4096]
    kinds = ["sliding_attention", "full_attention", "full_attention"]
    assert windows(read(QWEN2, **told, layer_types=kinds)) == [16, None, None]


def test_mistral_without_a_window() -> None:
    assert windows(read(MISTRAL, sliding_window=None)) == [None] * 3
    assert windows(read(MISTRAL, sliding_window=16)) == [16] * 3
    assert windows(read(MISTRAL)) == [4096] * 3


@pytest.mark.parametrize("ids", [7, [7]])
def test_one_eos_id_or_several(ids: object) -> None:
    assert read(LLAMA, eos_token_id=ids).eos_token_ids == (7,)
    assert read(LLAMA, eos_token_id=[7, 9]).eos_token_ids == (7, 9)
    assert read(LLAMA, eos_token_id=None).eos_token_ids == ()


def test_dtype_has_two_names() -> None:
    assert read(LLAMA, torch_dtype="bfloat16").torch_dtype == "bfloat16"
    assert read(LLAMA, dtype="float16").torch_dtype == "float16"


def test_model_type_stands_in_for_architectures() -> None:
    config = read({key: value for key, value in LLAMA.items() if key != "architectures"}, model_type="llama")
    assert config.architecture == "LlamaForCausalLM"


@pytest.mark.parametrize(
    ("base", "fields", "message"),
    [
        (LLAMA, {"architectures": ["MambaForCausalLM"]}, "the architecture is MambaForCausalLM; quire supports Llama"),
        (LLAMA, {"hidden_act": "relu6"}, "hidden_act is 'relu6', and quire supports one of silu, swish, gelu"),
        (LLAMA, {"rope_scaling": {"rope_type": "yarn"}}, "rope_scaling.rope_type is 'yarn'.*default, linear, llama3"),
        (LLAMA, {"rope_scaling": {"type": "dynamic"}}, "rope_scaling.type is 'dynamic'"),
        (LLAMA, {"rope_parameters": {"partial_rotary_factor": 0.5}}, "rope_parameters.partial_rotary_factor is 0.5"),
        (LLAMA, {"quantization_config": {"quant_method": "gptq"}}, "quantization_config is"),
        (QWEN2, {"layer_types": ["chunked_attention"] * 3}, "layer_types is .*full_attention and sliding_attention"),
        (GEMMA3, {"use_bidirectional_attention": True}, "use_bidirectional_attention is True"),
        (LLAMA, {"is_causal": False}, "is_causal is False, and quire supports only True"),
        (GPT2, {"is_causal": False}, "is_causal is False"),
        (OPT, {"layer_norm_elementwise_affine": False}, "layer_norm_elementwise_affine is False"),
        (GPT2, {"add_cross_attention": True}, "add_cross_attention is True"),
    ],
)
def test_what_quire_lacks_stops_loading(base: dict[str, Any], fields: dict[str, object], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=f"config.json: {message}"):
        read(base, **fields)


@pytest.mark.parametrize(
    ("base", "fields", "message"),
    [
        (
            LLAMA,
            {"hidden_size": 65},
            "hidden_size is 65, but it must be a multiple of the number of attention heads, 8",
        ),
        (LLAMA, {"num_key_value_heads": 3}, "8 attention heads cannot share 3 key/value heads evenly"),
        (LLAMA, {"hidden_size": -64}, "hidden_size is -64, but it must be a whole number from 1"),
        (LLAMA, {"num_hidden_layers": True}, "num_hidden_layers is True"),
        (LLAMA, {"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
        (LLAMA, {"vocab_size": 1e3}, "vocab_size is 1000.0"),
        (LLAMA, {"rms_norm_eps": float("nan")}, "rms_norm_eps is nan, but it must be a finite number above 0"),
        (LLAMA, {"rope_theta": 10**400}, "rope_theta is 1000"),
        (LLAMA, {"rope_theta": "10000"}, "rope_theta is '10000'"),
        (LLAMA, {"tie_word_embeddings": 1}, "tie_word_embeddings is 1, but it must be true or false"),
        (LLAMA, {"head_dim": 7}, "the head size is 7, and rotary positions need an even one"),
        (LLAMA, {"eos_token_id": 1000}, "the special token id 1000 is beyond the vocabulary of 1000 tokens"),
        (
            LLAMA,
            {"rope_scaling": {"type": "linear", "factor": 1e300}},
            r"max_position_embeddings is 2048, but it must be from 1 to 2147483647 when multiplied by the factor 1e\+300",
        ),
        (LLAMA, {"rope_scaling": [1]}, "rope_scaling is .* but it must be an object"),
        (QWEN2, {"layer_types": ["full_attention"] * 2}, "layer_types is .* 3 names, one a layer"),
        (QWEN2, {"layer_types": ["sliding_attention"] * 3}, "layer_types is .*use_sliding_window is false"),
        (GPT2, {"n_embd": 63}, "n_embd is 63"),
    ],
)
def test_nonsense_is_named(base: dict[str, Any], fields: dict[str, object], message: str) -> None:
    with pytest.raises(CheckpointError, match=f"config.json: {message}"):
        read(base, **fields)


@pytest.mark.parametrize(
    "value",
    [
        "x" * 10**6,
        ["x" * 100] * 10**5,
        {str(i): "x" * 100 for i in range(10**4)},
        [[[["x" * 50] * 10] * 10] * 10] * 10,
        10**4000,
    ],
    ids=["string", "list", "object", "nested", "number"],
)
@pytest.mark.parametrize("name", ["hidden_size", "quantization_config"])
def test_a_long_value_is_shortened_in_a_message(name: str, value: object) -> None:
    with pytest.raises((CheckpointError, UnsupportedModelError), match=rf"config\.json: {name} is .*\.\.\.") as caught:
        read(LLAMA, **{name: value})
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("base", EVERY_FAMILY)
def test_a_missing_size_is_named(base: dict[str, Any]) -> None:
    sizes = [key for key in base if key not in ("architectures", "sliding_window", "head_dim", "intermediate_size")]
    for name in sizes:
        if base is OPT and name == "intermediate_size":
            continue
        with pytest.raises(CheckpointError, match=f"config.json lacks {re.escape(name)}"):
            read({key: value for key, value in base.items() if key != name})


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
FIELDS = sorted(
    {*LLAMA, *GEMMA3, *GPT2, *OPT}
    | {
        "rope_scaling",
        "rope_parameters",
        "rope_theta",
        "layer_types",
        "eos_token_id",
        "hidden_act",
        "tie_word_embeddings",
    }
)


@given(base=st.sampled_from(EVERY_FAMILY), fields=st.dictionaries(st.sampled_from(FIELDS), JSON_VALUES, max_size=3))
def test_any_json_gives_a_config_or_a_clear_error(base: dict[str, Any], fields: dict[str, object]) -> None:
    try:
        config = read(base, **fields)
    except (CheckpointError, UnsupportedModelError) as error:
        message = str(error)
    else:
        assert config.num_parameters() > 0
        assert len(config.layers) == config.num_layers
        return
    assert "config.json" in message
