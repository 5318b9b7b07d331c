"""The weight files of a directory: all of them, only safetensors, nothing outside."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from quire.checkpoint.safetensors_index import INDEX_FILE, SINGLE_FILE, find_safetensors
from quire.errors import CheckpointError, ModelNotFoundError, UnsupportedModelError


def write_index(directory: Path, files: list[object]) -> None:
    content = {"weight_map": {f"tensor{i}": name for i, name in enumerate(files)}}
    (directory / INDEX_FILE).write_text(json.dumps(content))


def test_shards_come_from_the_index(tmp_path: Path) -> None:
    names = ["model-00002-of-00002.safetensors", "model-00001-of-00002.safetensors"]
    for name in [*names, "consolidated.safetensors"]:
        (tmp_path / name).touch()
    write_index(tmp_path, [*names, names[0]])
    assert [path.name for path in find_safetensors(tmp_path)] == sorted(names)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    write_index(tmp_path, ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"])
    (tmp_path / "model-00001-of-00002.safetensors").touch()
    with pytest.raises(CheckpointError, match=r"2 files, of which 1 .*model-00002-of-00002\.safetensors"):
        find_safetensors(tmp_path)


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/passwd", "sub/x.safetensors", "weights.bin", 7, None])
def test_an_index_cannot_point_elsewhere(tmp_path: Path, name: object) -> None:
    write_index(tmp_path, [name])
    with pytest.raises(CheckpointError, match="index"):
        find_safetensors(tmp_path)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"weight_map": {}}', '{"weight_map": [1]}', "[" * 100_000])
def test_a_damaged_index_is_an_error(tmp_path: Path, content: str) -> None:
    (tmp_path / INDEX_FILE).write_text(content)
    with pytest.raises(CheckpointError, match="index"):
        find_safetensors(tmp_path)


def test_pickles_are_refused_and_named(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(UnsupportedModelError, match=r"pytorch_model\.bin.*safetensors"):
        find_safetensors(tmp_path)


def test_several_files_without_an_index_are_not_guessed_at(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").touch()
    assert find_safetensors(tmp_path) == [tmp_path / "a.safetensors"]
    (tmp_path / "b.safetensors").touch()
    with pytest.raises(CheckpointError, match="2 safetensors files"):
        find_safetensors(tmp_path)


def test_an_index_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / INDEX_FILE)
    with pytest.raises(CheckpointError, match=r"index\.json could not be read: it is a pipe .*fetch the file again"):
        find_safetensors(tmp_path)


@pytest.mark.parametrize("other", [None, "other.safetensors"])
def test_a_link_to_weights_that_are_gone_is_named(tmp_path: Path, other: str | None) -> None:
    """What an interrupted download leaves in the cache of the hub."""
    (tmp_path / SINGLE_FILE).symlink_to("../blobs/gone")
    if other is not None:
        (tmp_path / other).touch()
    with pytest.raises(CheckpointError, match=r"link to \.\./blobs/gone, which is missing.*fetch the weights again"):
        find_safetensors(tmp_path)


def test_no_weights_at_all(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="fetch the weights"):
        find_safetensors(tmp_path)
