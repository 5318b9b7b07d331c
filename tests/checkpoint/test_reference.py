"""What a model may be called, and what is said about anything else."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire.checkpoint.reference import DirectoryModel, GGUFModel, resolve_model
from quire.errors import ModelNotFoundError, UnsupportedModelError


def test_a_gguf_file(tmp_path: Path) -> None:
    path = tmp_path / "some.Q4.gguf"
    path.touch()
    assert resolve_model(str(path)) == GGUFModel("some.Q4", path)


def test_a_directory(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").touch()
    model = resolve_model(str(tmp_path))
    assert model == DirectoryModel(tmp_path.name, tmp_path, (tmp_path / "model.safetensors",))


def test_planning_needs_no_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert resolve_model(str(tmp_path), with_weights=False) == DirectoryModel(tmp_path.name, tmp_path, ())


def test_a_directory_with_only_a_gguf_file_points_at_it(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").touch()
    with pytest.raises(ModelNotFoundError, match=r"did you mean .*m\.gguf"):
        resolve_model(str(tmp_path))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pkl"])
def test_a_pickle_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(UnsupportedModelError, match="run code"):
        resolve_model(str(tmp_path / name))


@pytest.mark.parametrize("reference", ["", "smolm2", "no/such/directory", "missing.gguf", "org/missing.gguf", "a b"])
def test_anything_else_lists_what_a_reference_can_be(reference: str) -> None:
    with pytest.raises(ModelNotFoundError, match=r"smollm2.*gguf file.*org/name"):
        resolve_model(reference)
