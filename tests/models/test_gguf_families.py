"""Every family that GGUF has, from a GGUF file: the numbers its converter changed must come back."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from tests.models.gguf_files import save_gguf
from tests.models.paged_run import all_logits, load
from tests.models.random_checkpoints import VOCAB_SIZE, make_model, oracle_logits

from quire.checkpoint.checkpoint import open_checkpoint
from quire.checkpoint.model_config import CodelessTensors
from quire.errors import UnsupportedModelError

NAMES = [
    "llama",
    "llama-tied",
    "llama-biases",
    "llama-head-dim",
    "llama-3",
    "llama-linear-rope",
    "mistral-window",
    "qwen2",
    "qwen3",
    "gpt2",
    "gpt2-untied",
]


def check_logits(name: str, path: Path) -> None:
    oracle = make_model(name)
    if name == "gemma3":
        # What a GGUF file does not say: the scale follows from the head size.
        for layer in oracle.model.layers:
            layer.self_attn.scaling = oracle.config.head_dim**-0.5
    save_gguf(oracle, path)
    row = torch.randint(3, VOCAB_SIZE, (40,), generator=torch.Generator().manual_seed(1)).tolist()
    logits = all_logits(load(path), [row], [16])[0]
    torch.testing.assert_close(logits, oracle_logits(oracle, row), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", [*NAMES, "gemma3"])
def test_logits_match_transformers(name: str, tmp_path: Path) -> None:
    check_logits(name, tmp_path / "model.gguf")


@pytest.mark.parametrize("name", ["llama", "llama-biases", "gemma3", "gpt2"])
def test_any_range_of_rows_reads_as_a_slice_of_the_whole(name: str, tmp_path: Path) -> None:
    oracle = make_model(name)
    save_gguf(oracle, tmp_path / "model.gguf")
    source = open_checkpoint(str(tmp_path / "model.gguf")).open_weights()
    expected = {key: value.numpy() for key, value in oracle.state_dict().items()}
    for tensor in source.names():
        whole = expected[tensor]
        assert source.info(tensor).shape == whole.shape
        num_rows = whole.shape[0]
        for start, stop in [(0, num_rows), (1, 2), (3, num_rows - 1), (num_rows // 2, num_rows), (5, 5)]:
            np.testing.assert_allclose(source.read(tensor, start, stop), whole[start:stop], rtol=0, atol=3e-7)
    source.close()


def test_header_alone_describes_the_model(tmp_path: Path) -> None:
    """As for planning: nothing but the header is read."""
    oracle = make_model("qwen2")
    save_gguf(oracle, tmp_path / "model.gguf")
    config = open_checkpoint(str(tmp_path / "model.gguf"), with_weights=False).config
    assert config.num_parameters() == sum(p.numel() for p in oracle.parameters())
    assert config.eos_token_ids == (2,)
    assert config.quantized_bytes is None


def test_header_names_what_no_kernel_has(tmp_path: Path) -> None:
    q4_0, iq4_nl = gguf.GGMLQuantizationType.Q4_0, gguf.GGMLQuantizationType.IQ4_NL
    types = {"blk.0.attn_q.weight": iq4_nl, "blk.2.attn_output.weight": iq4_nl, "blk.1.attn_q.weight": q4_0}
    save_gguf(make_model("llama"), tmp_path / "model.gguf", types)
    checkpoint = open_checkpoint(str(tmp_path / "model.gguf"))
    assert checkpoint.config.quantized_bytes is not None
    (codeless,) = checkpoint.config.codeless
    assert codeless == CodelessTensors(
        type_name="IQ4_NL", num_tensors=2, num_values=2 * 32 * 32, num_bytes=2 * 32 * 32 // 32 * 18
    )
    with closing(checkpoint.open_weights()) as source:
        kept = [name for name in source.names() if source.read_blocks(name, transposed=False)]
    assert kept == ["model.layers.1.self_attn.q_proj.weight"]


def test_unknown_architecture_is_named(tmp_path: Path) -> None:
    save_gguf(make_model("llama"), tmp_path / "model.gguf")
    content = (tmp_path / "model.gguf").read_bytes()
    # Same length, so the file stays well-formed.
    (tmp_path / "model.gguf").write_bytes(content.replace(b"llama", b"mamba"))
    with pytest.raises(
        UnsupportedModelError, match=r"general.architecture is 'mamba', and quire supports one of llama"
    ):
        open_checkpoint(str(tmp_path / "model.gguf"))
