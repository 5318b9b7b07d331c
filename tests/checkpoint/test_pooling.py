"""How an encoder pools: what sentence-transformers' files say, and what is refused in them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.tiny_models import save_sentence_transformer

from quire.checkpoint.model_config import PoolingConfig
from quire.checkpoint.pooling import read_pooling
from quire.errors import CheckpointError, UnsupportedModelError

DEFAULT = PoolingConfig(kind="mean", normalize=True, max_tokens=512)


def edit(path: Path, **fields: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


@pytest.mark.parametrize(("mode", "kind"), [("cls_token", "cls"), ("mean_tokens", "mean")])
@pytest.mark.parametrize("normalize", [True, False])
def test_files_of_sentence_transformers(mode: str, kind: str, normalize: bool, tmp_path: Path) -> None:
    save_sentence_transformer(tmp_path, mode=mode, normalize=normalize, max_tokens=128)
    assert read_pooling(tmp_path, DEFAULT) == PoolingConfig(kind=kind, normalize=normalize, max_tokens=128)


def test_without_files_the_familys_default_holds(tmp_path: Path) -> None:
    assert read_pooling(tmp_path, DEFAULT) == DEFAULT


def test_positions_limit_what_the_files_say(tmp_path: Path) -> None:
    save_sentence_transformer(tmp_path, mode="cls_token", normalize=True, max_tokens=100_000)
    assert read_pooling(tmp_path, DEFAULT).max_tokens == DEFAULT.max_tokens


def test_the_newer_spelling(tmp_path: Path) -> None:
    save_sentence_transformer(tmp_path, mode="mean_tokens", normalize=True, max_tokens=128)
    (tmp_path / "1_Pooling" / "config.json").write_text('{"embedding_dimension": 32, "pooling_mode": "cls"}')
    assert read_pooling(tmp_path, DEFAULT).kind == "cls"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"pooling_mode_mean_tokens": False, "pooling_mode_max_tokens": True}, "asks for pooling_mode_max_tokens"),
        ({"pooling_mode_cls_token": True}, "asks for pooling_mode_cls_token, pooling_mode_mean_tokens"),
        ({"pooling_mode_mean_tokens": False}, "asks for no pooling"),
        ({"pooling_mode": "lasttoken"}, "one of mean, cls"),
    ],
)
def test_other_ways_to_pool_are_refused(fields: dict[str, object], message: str, tmp_path: Path) -> None:
    save_sentence_transformer(tmp_path, mode="mean_tokens", normalize=True, max_tokens=128)
    edit(tmp_path / "1_Pooling" / "config.json", **fields)
    with pytest.raises(UnsupportedModelError, match=message):
        read_pooling(tmp_path, DEFAULT)


def test_other_steps_are_refused(tmp_path: Path) -> None:
    save_sentence_transformer(tmp_path, mode="mean_tokens", normalize=True, max_tokens=128)
    modules = json.loads((tmp_path / "modules.json").read_text())
    modules.insert(2, {"type": "sentence_transformers.models.Dense", "path": "2_Dense"})
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(UnsupportedModelError, match="steps Transformer, Pooling, Dense, Normalize"):
        read_pooling(tmp_path, DEFAULT)


NESTED = b"[" * 100_000 + b"]" * 100_000


@pytest.mark.parametrize(
    "content",
    [b"{}", b'[{"path": 1}]', b"[", b'["x"]', b'[{"type": "\xff"}]', b'[{"type": "", "more": %s}]' % NESTED],
    ids=["object", "no type", "cut", "texts", "no UTF-8", "nested"],
)
def test_damaged_modules_are_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"modules\.json is not a list of modules"):
        read_pooling(tmp_path, DEFAULT)


def test_modules_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "modules.json").mkdir()
    with pytest.raises(CheckpointError, match=r"modules\.json could not be read: Is a directory"):
        read_pooling(tmp_path, DEFAULT)


@pytest.mark.parametrize("name", ["modules.json", "sentence_bert_config.json", "1_Pooling/config.json"])
def test_a_pipe_is_not_waited_for(name: str, tmp_path: Path) -> None:
    save_sentence_transformer(tmp_path, mode="mean_tokens", normalize=True, max_tokens=128)
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    with pytest.raises(CheckpointError, match=rf"{name} could not be read.*: it is a pipe .*fetch the file again"):
        read_pooling(tmp_path, DEFAULT)


@pytest.mark.parametrize("path", ["../outside", "/etc", "a\0b"])
def test_a_path_out_of_the_model_is_refused(path: str, tmp_path: Path) -> None:
    save_sentence_transformer(tmp_path, mode="mean_tokens", normalize=True, max_tokens=128)
    modules = json.loads((tmp_path / "modules.json").read_text())
    modules[1]["path"] = path
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(CheckpointError, match="points outside the model"):
        read_pooling(tmp_path, DEFAULT)


@pytest.mark.parametrize("max_tokens", [0, -1, "128", 1.5])
def test_a_length_that_is_none(max_tokens: object, tmp_path: Path) -> None:
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": max_tokens}))
    with pytest.raises(CheckpointError, match="max_seq_length"):
        read_pooling(tmp_path, DEFAULT)
