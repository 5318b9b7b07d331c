"""BERT's config.json: fields that quire does not implement are refused, not passed over."""

from __future__ import annotations

from typing import Any

import pytest

from quire.checkpoint.families import read_config
from quire.errors import CheckpointError, UnsupportedModelError

MINILM: dict[str, Any] = {
    "architectures": ["BertModel"],
    "hidden_act": "gelu",
    "hidden_size": 384,
    "intermediate_size": 1536,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512,
    "model_type": "bert",
    "num_attention_heads": 12,
    "num_hidden_layers": 6,
    "position_embedding_type": "absolute",
    "type_vocab_size": 2,
    "vocab_size": 30522,
}


def test_an_encoder_keeps_no_kv() -> None:
    config = read_config(MINILM, "config.json")
    assert config.is_encoder
    assert config.kv_specs() == []
    assert config.num_parameters() == 22_713_216 - (384 * 384 + 384)  # less the pooler


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
        ({"is_decoder": True}, "is_decoder is True"),
        ({"add_cross_attention": True}, "add_cross_attention is True"),
        ({"hidden_act": "silu_and_mul"}, "hidden_act is 'silu_and_mul'"),
        ({"quantization_config": {"bits": 8}}, "quantization_config"),
        ({"architectures": ["BertForMaskedLM"]}, "the architecture is BertForMaskedLM"),
    ],
)
def test_what_is_not_implemented_is_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        read_config(MINILM | fields, "config.json")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"type_vocab_size": 0}, "type_vocab_size is 0"),
        ({"num_attention_heads": 7}, "hidden_size"),
        ({"max_position_embeddings": None}, "lacks max_position_embeddings"),
    ],
)
def test_damage_is_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_config(MINILM | fields, "config.json")
