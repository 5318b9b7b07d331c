"""What GGUF's metadata say of a decoder that config.json says otherwise."""

from __future__ import annotations

import pytest

from quire.checkpoint.families import read_gguf_config
from quire.checkpoint.gguf import GGUFTensor
from quire.checkpoint.gguf.block_types import BLOCK_TYPES
from quire.checkpoint.model_config import LinearRopeScaling, RopeScaling
from quire.errors import CheckpointError

METADATA = {
    "general.architecture": "llama",
    "llama.block_count": 1,
    "llama.context_length": 128,
    "llama.embedding_length": 32,
    "llama.feed_forward_length": 64,
    "llama.attention.head_count": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "general.file_type": 0,
}
EMBEDDING = GGUFTensor((8, 32), BLOCK_TYPES[0], 0, 8 * 32 * 4)


def rope_scaling(**fields: object) -> RopeScaling | None:
    named = {f"llama.rope.{name}": value for name, value in fields.items()}
    rope = read_gguf_config(METADATA | named, {"token_embd.weight": EMBEDDING}, "m.gguf").layers[0].rope
    assert rope is not None
    return rope.scaling


@pytest.mark.parametrize(
    ("fields", "factor"),
    [
        ({}, None),
        ({"scaling.type": "none"}, None),
        ({"scaling.type": "none", "scaling.factor": 4.0}, None),
        ({"scaling.type": "linear", "scaling.factor": 4.0}, 4.0),
        ({"scaling.factor": 4.0}, 4.0),
        ({"scale_linear": 4.0}, 4.0),
        ({"scale_linear": 2.0, "scaling.factor": 4.0}, 4.0),
    ],
)
def test_linear_scaling_of_positions(fields: dict[str, object], factor: float | None) -> None:
    assert rope_scaling(**fields) == (None if factor is None else LinearRopeScaling(factor=factor))


def test_a_factor_that_is_missing_is_named() -> None:
    with pytest.raises(CheckpointError, match=r"lacks llama\.rope.scaling\.factor"):
        rope_scaling(**{"scaling.type": "linear"})
