"""From what a user calls a model to its files on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from quire.checkpoint.catalog import BUILTIN_MODELS
from quire.checkpoint.pull import pull
from quire.checkpoint.safetensors_index import PICKLE_SUFFIXES, find_safetensors
from quire.errors import ModelNotFoundError, UnsupportedModelError, in_words


@dataclass(frozen=True, slots=True)
class GGUFModel:
    """A model in one GGUF file."""

    name: str
    path: Path


@dataclass(frozen=True, slots=True)
class DirectoryModel:
    """A model in Hugging Face's layout: config.json, safetensors, tokenizer files.

    `weights` is empty where only the config was asked for.
    """

    name: str
    directory: Path
    weights: tuple[Path, ...]


ModelFiles = GGUFModel | DirectoryModel


def resolve_model(reference: str, *, with_weights: bool = True) -> ModelFiles:
    """Find a model, fetching it if it is built in or on the hub.

    A reference is a built-in name, a .gguf file, a directory, or `org/name[@revision]` on the Hugging Face Hub; what
    exists on this machine wins. `with_weights=False` does without weight files where the config lies apart from them.
    Raises ModelNotFoundError, UnsupportedModelError, CheckpointError or DownloadError.
    """
    if reference in BUILTIN_MODELS:
        pulled = pull(reference)
        return _resolve_directory(pulled, reference, True) if pulled.is_dir() else GGUFModel(reference, pulled)
    here = _find_here(reference, with_weights)
    if here is not None:
        return here
    # Imported here because it brings an HTTP stack, which the other kinds of reference never need.
    from quire.checkpoint.hub import fetch_repository, parse_repository

    repository = parse_repository(reference)
    if repository is None or reference.endswith(".gguf"):
        raise ModelNotFoundError(
            f"There is no model {reference!r}: it is neither a built-in name ({', '.join(BUILTIN_MODELS)}), nor a"
            " directory, nor a .gguf file, nor a Hugging Face repo id like org/name or org/name@revision."
        )
    directory = fetch_repository(repository, with_weights=with_weights)
    return _resolve_directory(directory, repository.id, with_weights)


def _find_here(reference: str, with_weights: bool) -> ModelFiles | None:
    """The model among the files of this machine, if it is there."""
    try:
        path = Path(reference).expanduser()
        if path.is_file():
            return _resolve_file(path)
        if reference and path.is_dir():
            return _resolve_directory(path, path.resolve().name, with_weights)
        return None
    except (OSError, RuntimeError, ValueError) as error:  # of pathlib: no permission, no such user, a name with a NUL
        raise ModelNotFoundError(
            f"{reference!r} cannot be looked for among the files of this machine ({in_words(error)}); give a directory or a"
            " .gguf file that you may read."
        ) from error


def _resolve_file(path: Path) -> GGUFModel:
    if path.suffix == ".gguf":
        return GGUFModel(path.stem, path)
    if path.suffix in PICKLE_SUFFIXES:
        raise UnsupportedModelError(
            f"{path} is a pickle, which can run code when loaded; save the model as safetensors and give its directory."
        )
    raise UnsupportedModelError(f"{path} is not a .gguf file; for safetensors give the directory they lie in.")


def _resolve_directory(directory: Path, name: str, with_weights: bool) -> ModelFiles:
    if (directory / "config.json").is_file():
        return DirectoryModel(name, directory, tuple(find_safetensors(directory)) if with_weights else ())
    ggufs = sorted(directory.glob("*.gguf"))
    hint = f"; did you mean {ggufs[0]}?" if ggufs else " and the weights as safetensors."
    raise ModelNotFoundError(f"{directory} is not a model directory: it needs a config.json{hint}")
