"""A checkpoint as the engine meets it: config, tokenizer, weights; and nothing of it is ever executed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from quire.checkpoint.checkpoint import open_checkpoint
from quire.errors import CheckpointError


@pytest.fixture
def model(tiny_llama: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_llama, tmp_path / "model"))


def update_json(path: Path, **changes: Any) -> None:
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(content | changes))


def test_a_directory(model: Path) -> None:
    checkpoint = open_checkpoint(str(model))
    assert (checkpoint.name, checkpoint.config.family) == ("model", "llama")
    assert checkpoint.tokenizer.model_vocab_size == checkpoint.config.vocab_size
    weights = checkpoint.open_weights()
    assert "model.embed_tokens.weight" in weights.names()
    weights.close()


@pytest.mark.parametrize(("ends", "expected"), [(None, (256,)), (7, (256, 7)), ([256, 7, 9], (256, 7, 9))])
def test_generation_config_adds_ends_of_text(model: Path, ends: object, expected: tuple[int, ...]) -> None:
    update_json(model / "generation_config.json", eos_token_id=ends)
    checkpoint = open_checkpoint(str(model))
    assert checkpoint.config.eos_token_ids == expected
    assert checkpoint.tokenizer.eos_token_ids == expected


@pytest.mark.parametrize("ends", ["two", -1, True, [256, 2.0]])
def test_a_damaged_end_of_text_is_named(model: Path, ends: object) -> None:
    update_json(model / "generation_config.json", eos_token_id=ends)
    with pytest.raises(CheckpointError, match=r"generation_config.json.* eos_token_id is"):
        open_checkpoint(str(model))


def test_what_is_left_out_of_a_generation_config_is_noted(model: Path) -> None:
    update_json(model / "generation_config.json", eos_token_id=[256, 320], temperature=0.6)
    checkpoint = open_checkpoint(str(model))
    assert checkpoint.config.eos_token_ids == (256,)
    assert len(checkpoint.notes) == 2


def test_code_that_comes_with_a_model_is_never_run(model: Path, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    (model / "evil.py").write_text(f"open({str(marker)!r}, 'w').close()")
    auto_map = {"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M", "AutoTokenizer": ["evil.T", None]}
    for name in ("config.json", "tokenizer_config.json", "generation_config.json"):
        update_json(model / name, auto_map=auto_map)
    checkpoint = open_checkpoint(str(model))
    assert checkpoint.tokenizer.tokenizer_json
    checkpoint.open_weights().close()
    assert not marker.exists()


def test_planning_reads_a_config_without_weights(model: Path) -> None:
    (model / "model.safetensors").unlink()
    assert open_checkpoint(str(model), with_weights=False).config.num_layers == 2
