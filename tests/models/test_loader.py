"""Damaged and mismatched checkpoints: each is refused with the tensor's name, none is loaded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.models.paged_run import all_logits, load
from tests.models.random_checkpoints import oracle_logits, save_checkpoint
from transformers import AutoModelForCausalLM

from quire.checkpoint.gguf.block_codes import BlockRows
from quire.checkpoint.weights import TensorInfo
from quire.core.native import has_native_module
from quire.core.quantization import Quantization
from quire.errors import CheckpointError
from quire.kernels.array import Arrays
from quire.kernels.dtype import DType
from quire.models.decoder import Decoder
from quire.models.loader import WeightLoader

Tensors = dict[str, torch.Tensor]
Q_PROJ = "model.layers.1.self_attn.q_proj.weight"


def change(directory: Path, edit: Callable[[Tensors], None]) -> None:
    tensors = load_file(directory / "model.safetensors")
    edit(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, directory / "model.safetensors")


def change_config(directory: Path, **fields: object) -> None:
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | fields))


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    save_checkpoint("llama", tmp_path)
    return tmp_path


def test_missing_tensor(llama: Path) -> None:
    change(llama, lambda tensors: tensors.__delitem__(Q_PROJ))
    with pytest.raises(CheckpointError, match=rf"lacks the tensor {Q_PROJ}, of shape \(32, 32\)"):
        load(llama)


def test_wrong_shape(llama: Path) -> None:
    change(llama, lambda tensors: tensors.update({Q_PROJ: torch.zeros(32, 31)}))
    with pytest.raises(CheckpointError, match=rf"{Q_PROJ} has shape \(32, 31\), but its config demands \(32, 32\)"):
        load(llama)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_value_that_is_not_finite(llama: Path, value: float, dtype: torch.dtype) -> None:
    def poison(tensors: Tensors) -> None:
        tensors[Q_PROJ][17, 5] = value

    change(llama, poison)
    with pytest.raises(CheckpointError, match=f"{Q_PROJ} has values that are infinite or not numbers"):
        load(llama, dtype)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_value_that_is_not_finite_in_bfloat16(llama: Path, value: float) -> None:
    """As bits, all numbers below zero are larger than infinity."""

    def poison(tensors: Tensors) -> None:
        for name in tensors:
            tensors[name] = tensors[name].bfloat16()
        tensors[Q_PROJ][17, 5] = value

    change(llama, poison)
    with pytest.raises(CheckpointError, match=f"{Q_PROJ} has values that are infinite or not numbers"):
        load(llama)


@pytest.mark.skipif(not has_native_module(), reason="the native kernels were not built")
@pytest.mark.parametrize(
    ("model", "tensor"), [("llama", Q_PROJ), ("gpt2", "transformer.h.0.attn.c_attn.weight")], ids=["llama", "gpt2"]
)
def test_value_that_is_not_finite_is_not_rounded(model: str, tensor: str, tmp_path: Path) -> None:
    """GPT-2's weights are read by columns."""
    save_checkpoint(model, tmp_path)
    change(tmp_path, lambda tensors: tensors[tensor][17, 5].fill_(float("inf")))
    with pytest.raises(CheckpointError, match=f"{tensor} has values that are infinite or not numbers"):
        load(tmp_path, backend="cpu", quantization="int8")


class SourceOfBlocks:
    """Of one tensor, whose blocks nobody looks at."""

    def names(self) -> list[str]:
        return ["blocks"]

    def info(self, name: str) -> TensorInfo:
        return TensorInfo((1, 32), "float32")

    def read(self, name: str, start: int, stop: int) -> Any:
        raise AssertionError("its blocks are wanted")

    def read_blocks(self, name: str, *, transposed: bool) -> BlockRows:
        return BlockRows("Q8_0", 32, np.zeros((1, 34), np.uint8), np.zeros(1, np.int64))

    def close(self) -> None: ...


def test_blocks_whose_scales_are_not_finite() -> None:
    loader = WeightLoader(SourceOfBlocks(), "a model", Arrays(), DType.FLOAT32, "")
    with pytest.raises(CheckpointError, match="a model: tensor blocks has values that are infinite or not numbers"):
        loader.blocks("blocks", lambda rows: False, transposed=False)
    assert loader.blocks("blocks", lambda rows: True, transposed=False)
    loader.finish()


@pytest.mark.parametrize("value", [1e6, 65520.0], ids=["far", "the first that is rounded to infinity"])
def test_value_beyond_the_target_dtype(llama: Path, value: float) -> None:
    def enlarge(tensors: Tensors) -> None:
        tensors[Q_PROJ][0, 0] = value

    change(llama, enlarge)
    load(llama, torch.bfloat16)
    with pytest.raises(CheckpointError, match=r"beyond the range of torch.float16; load it with dtype bfloat16"):
        load(llama, torch.float16)


def test_tensor_without_a_place(llama: Path) -> None:
    """A bias the config does not ask for would silently be left out of the computation."""
    change(llama, lambda tensors: tensors.update({"model.layers.0.self_attn.q_proj.bias": torch.ones(32)}))
    with pytest.raises(CheckpointError, match=r"no place for: model\.layers\.0\.self_attn\.q_proj\.bias"):
        load(llama)


def test_fewer_layers_in_the_config(llama: Path) -> None:
    change_config(llama, num_hidden_layers=2)
    with pytest.raises(CheckpointError, match=r"no place for: model.layers.2.* and 4 more"):
        load(llama)


@pytest.mark.parametrize("field", ["vocab_size", "intermediate_size", "num_attention_heads", "head_dim"])
def test_enormous_config_allocates_nothing(llama: Path, field: str) -> None:
    change_config(llama, **{field: 2**31 - 2})
    with pytest.raises(CheckpointError, match="demands"):
        load(llama)


def test_old_buffers_are_passed_over(llama: Path) -> None:
    change(llama, lambda tensors: tensors.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}))
    load(llama)


def test_tied_checkpoint_with_a_second_copy(tmp_path: Path) -> None:
    save_checkpoint("llama-tied", tmp_path)
    change(tmp_path, lambda tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}))
    model = load(tmp_path)
    assert isinstance(model, Decoder)
    assert model.head.table is model.embedding.table


@pytest.mark.skipif(not has_native_module(), reason="the native kernels were not built")
@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_tied_checkpoint_with_a_second_copy_is_rounded(quantization: Quantization, tmp_path: Path) -> None:
    save_checkpoint("llama-tied", tmp_path)
    change(tmp_path, lambda tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}))
    model = load(tmp_path, torch.bfloat16, "cpu", quantization)
    assert isinstance(model, Decoder)
    assert model.head.table is model.embedding.table


def test_tied_config_with_another_output_projection(tmp_path: Path) -> None:
    save_checkpoint("llama-tied", tmp_path)
    change(tmp_path, lambda tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"] + 1}))
    with pytest.raises(CheckpointError, match=r"lm_head\.weight differs from the token embedding"):
        load(tmp_path)


@pytest.mark.parametrize(("name", "prefix"), [("gpt2", "transformer."), ("opt", "model."), ("llama-tied", "model.")])
def test_names_without_the_base_prefix(name: str, prefix: str, tmp_path: Path) -> None:
    """The GPT-2 and OPT files on the hub were saved from the model without its output projection."""
    oracle = save_checkpoint(name, tmp_path)

    def rename(tensors: Tensors) -> None:
        for key in list(tensors):
            tensors[key.removeprefix(prefix)] = tensors.pop(key)
        tensors["h.0.attn.bias"] = torch.ones(1, 1, 8, 8)

    change(tmp_path, rename)
    row = list(range(3, 20))
    torch.testing.assert_close(
        all_logits(load(tmp_path), [row], [8])[0], oracle_logits(oracle, row), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("saved", [torch.bfloat16, torch.float16])
def test_saved_dtype_is_converted(saved: torch.dtype, tmp_path: Path) -> None:
    save_checkpoint("llama", tmp_path).to(saved).save_pretrained(tmp_path)
    oracle = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    row = list(range(3, 20))
    torch.testing.assert_close(
        all_logits(load(tmp_path), [row], [8])[0], oracle_logits(oracle, row), rtol=1e-4, atol=1e-4
    )


def test_shards(tmp_path: Path) -> None:
    oracle = save_checkpoint("qwen2", tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    row = list(range(3, 20))
    torch.testing.assert_close(
        all_logits(load(tmp_path), [row], [8])[0], oracle_logits(oracle, row), rtol=1e-4, atol=1e-4
    )
