"""What a GGUF header says of weights, and what of it quire does not compute."""

from __future__ import annotations

import pytest

from quire.checkpoint.families import read_gguf_config
from quire.checkpoint.gguf import GGUFTensor
from quire.checkpoint.gguf.block_types import BLOCK_TYPES
from quire.checkpoint.model_config import ModelConfig
from quire.errors import UnsupportedModelError

METADATA = {
    "general.architecture": "llama",
    "llama.block_count": 1,
    "llama.context_length": 128,
    "llama.embedding_length": 256,
    "llama.feed_forward_length": 512,
    "llama.attention.head_count": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
}
TYPES = {block_type.name: block_type for block_type in BLOCK_TYPES.values()}


def tensor(shape: tuple[int, ...], kind: str) -> GGUFTensor:
    return GGUFTensor(shape, TYPES[kind], 0, 0)


def read(kinds: dict[str, str], **metadata: object) -> ModelConfig:
    """`kinds`: the types of the matrices; the norm is of floats, as always."""
    tensors = {name: tensor((512, 256), kind) for name, kind in kinds.items()}
    tensors["output_norm.weight"] = tensor((256,), "F32")
    return read_gguf_config(METADATA | metadata, tensors, "m.gguf")


def test_codes_are_counted_in_bytes_and_the_rest_in_values() -> None:
    config = read({"token_embd.weight": "Q8_0", "blk.0.ffn_up.weight": "Q2_K", "blk.0.ffn_gate.weight": "F16"})
    assert config.quantized_bytes == 512 * 256 * 34 // 32
    assert config.num_float_values == 2 * 512 * 256 + 256


@pytest.mark.parametrize("kind", ["Q2_K", "Q3_K", "IQ4_NL", "F16", "F32"])
def test_a_file_none_of_whose_codes_are_kept_has_no_bytes_of_codes(kind: str) -> None:
    config = read({"token_embd.weight": kind})
    assert config.quantized_bytes is None
    assert config.saved_in_few_bits == (not kind.startswith("F"))


@pytest.mark.parametrize(("kind", "dtype"), [("F32", "float32"), ("F16", "float16"), ("BF16", "bfloat16")])
@pytest.mark.parametrize("metadata", [{}, {"general.file_type": 2}])
def test_the_dtype_is_that_of_the_tensors(kind: str, dtype: str, metadata: dict[str, object]) -> None:
    assert read({"token_embd.weight": kind}, **metadata).torch_dtype == dtype


def test_attention_to_later_tokens_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match=r"m\.gguf: llama\.attention\.causal is False"):
        read({"token_embd.weight": "F32"}, **{"llama.attention.causal": False})
