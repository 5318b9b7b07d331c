"""What a model may be called, and what is said about anything else."""

from __future__ import annotations

import errno
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


@pytest.mark.parametrize(
    ("reference", "reason"),
    [
        ("x" * 300, "File name too long"),
        ("~nosuchuser/x", "home directory"),
        ("~nosuchuser\0/x", "null byte"),
    ],
)
def test_a_name_that_no_file_can_have_is_not_found(reference: str, reason: str) -> None:
    with pytest.raises(ModelNotFoundError, match=rf"cannot be looked for .*{reason}.*that you may read"):
        resolve_model(reference)


def test_a_name_with_a_nul_is_not_found() -> None:
    with pytest.raises(ModelNotFoundError, match="org/name"):
        resolve_model("a\0b")


def test_a_directory_that_may_not_be_entered_is_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As pathlib says it: root, whom nothing is forbidden, runs the tests too."""
    (tmp_path / "config.json").write_text("{}")

    def refuse(path: Path) -> bool:
        if path.name == "config.json":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return False

    monkeypatch.setattr(Path, "is_file", refuse)
    with pytest.raises(ModelNotFoundError, match=rf"{tmp_path}' cannot be looked for .*\(Permission denied\)"):
        resolve_model(str(tmp_path))
