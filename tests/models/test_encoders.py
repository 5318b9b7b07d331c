"""Encoders against transformers: the same checkpoint, the same texts, the same hidden state of every token."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.tiny_models import BERT_CONTEXT, BERT_VOCAB_SIZE, save_tiny_bert

from quire.attention.select import select_backend
from quire.checkpoint.checkpoint import open_checkpoint
from quire.core.native import has_native_module
from quire.errors import CheckpointError
from quire.kernels.select import select_ops
from quire.kernels.tensor import Tensors
from quire.models.registry import ENCODERS, Encoder, load_model
from quire.worker.encode_worker import pack

VARIANTS: dict[str, dict[str, object]] = {
    "plain": {},
    "relu": {"hidden_act": "relu"},
    "gelu_new": {"hidden_act": "gelu_new"},
    "one-token-type": {"type_vocab_size": 1},
    "one-head": {"num_attention_heads": 1},
    "coarse-eps": {"layer_norm_eps": 1e-2},
}
NATIVE = pytest.param(
    "cpu", marks=pytest.mark.skipif(not has_native_module(), reason="the native kernels were not built")
)
LENGTHS = [1, 17, 5, BERT_CONTEXT, 5, 2]


class Loaded(NamedTuple):
    encoder: Encoder
    tensors: Tensors


def load(directory: Path, backend: str, dtype: str = "float32") -> Loaded:
    checkpoint = open_checkpoint(str(directory))
    ops = select_ops(backend)
    own = ops.tensors.dtype(dtype)
    encoder = load_model(ENCODERS, checkpoint, own, ops, select_backend(backend, own, checkpoint.config))
    return Loaded(encoder, ops.tensors)


def texts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(0, BERT_VOCAB_SIZE, (length,), generator=generator).tolist() for length in LENGTHS]


@torch.inference_mode()
def hidden_states(loaded: Loaded, rows: list[list[int]]) -> list[torch.Tensor]:
    """In float32."""
    hidden = torch.from_numpy(loaded.tensors.numbers(loaded.encoder.forward(pack(rows, loaded.tensors))))
    return list(hidden.split([len(row) for row in rows]))


@pytest.mark.parametrize("backend", ["reference", "torch", NATIVE])
@pytest.mark.parametrize("variant", VARIANTS)
def test_hidden_states_match_transformers(variant: str, backend: str, tmp_path: Path) -> None:
    """Texts of many lengths in one step, each against transformers alone."""
    oracle = save_tiny_bert(tmp_path, **VARIANTS[variant])
    rows = texts()
    for row, hidden in zip(rows, hidden_states(load(tmp_path, backend), rows), strict=True):
        with torch.inference_mode():
            expected = oracle(torch.tensor([row])).last_hidden_state[0]
        torch.testing.assert_close(hidden, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("backend", ["reference", NATIVE])
def test_a_text_has_the_same_bits_in_any_company(backend: str, dtype: str, tmp_path: Path) -> None:
    save_tiny_bert(tmp_path)
    encoder = load(tmp_path, backend, dtype)
    rows = texts()
    together = hidden_states(encoder, rows)
    for i, row in enumerate(rows):
        assert torch.equal(hidden_states(encoder, [row])[0], together[i]), LENGTHS[i]
    backwards = hidden_states(encoder, rows[::-1])[::-1]
    assert all(torch.equal(a, b) for a, b in zip(together, backwards, strict=True))


@pytest.mark.parametrize("variant", ["plain", "one-token-type"])
def test_num_parameters_is_exact_but_for_the_pooler(variant: str, tmp_path: Path) -> None:
    oracle = save_tiny_bert(tmp_path, **VARIANTS[variant])
    expected = sum(parameter.numel() for name, parameter in oracle.named_parameters() if "pooler" not in name)
    assert open_checkpoint(str(tmp_path)).config.num_parameters() == expected


def test_names_with_the_prefix_of_a_whole_model(tmp_path: Path) -> None:
    save_tiny_bert(tmp_path)
    row = texts()[:1]
    expected = hidden_states(load(tmp_path, "torch"), row)[0]
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({f"bert.{name}": tensor for name, tensor in tensors.items()}, tmp_path / "model.safetensors")
    assert torch.equal(hidden_states(load(tmp_path, "torch"), row)[0], expected)


def test_a_tensor_without_a_place_is_refused(tmp_path: Path) -> None:
    save_tiny_bert(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["encoder.layer.3.output.dense.weight"] = torch.zeros(32, 56)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"no place for: encoder\.layer\.3\.output\.dense\.weight"):
        load(tmp_path, "torch")
