"""Which safetensors files make up the model in a directory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from quire.errors import CheckpointError, ModelNotFoundError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


class _Index(msgspec.Struct):
    weight_map: Annotated[dict[str, str], msgspec.Meta(min_length=1)]
    """File by tensor."""


def find_safetensors(directory: Path) -> list[Path]:
    """model.safetensors, or the shards that model.safetensors.index.json names; other files are left alone.

    Raises ModelNotFoundError if the directory has neither, CheckpointError if the index is damaged, names a place
    outside the directory, or names a shard that is not there.
    """
    if (directory / SINGLE_FILE).exists():
        return [directory / SINGLE_FILE]
    index = directory / INDEX_FILE
    if not index.exists():
        raise ModelNotFoundError(_nothing_to_load(directory))
    shards = sorted(set(read_weight_map(index).values()))
    missing = [shard for shard in shards if not (directory / shard).exists()]
    if missing:
        raise CheckpointError(
            f"{index} names {len(shards)} files, of which {len(missing)} are missing: {', '.join(missing)};"
            " fetch them into the same directory."
        )
    return [directory / shard for shard in shards]


def read_weight_map(index: Path) -> dict[str, str]:
    """The file that holds each tensor: names of files beside the index. Raises CheckpointError."""
    try:
        weight_map = msgspec.json.decode(index.read_bytes(), type=_Index).weight_map
    except OSError as error:
        raise CheckpointError(f"{index} could not be read: {error.strerror}.") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError(f"{index} is not an index of safetensors files: {error}; fetch it again.") from error
    for tensor, shard in weight_map.items():
        if not shard.endswith(".safetensors") or any(mark in shard for mark in "/\\:\0"):
            raise CheckpointError(
                f"{index}: tensor {tensor!r} is said to be in {shard!r}, which is no safetensors file beside the index;"
                " fetch the index again."
            )
    return weight_map


def _nothing_to_load(directory: Path) -> str:
    found = sorted(path.name for path in directory.glob("*") if path.suffix in (".safetensors", ".bin", ".pth", ".pt"))
    pickled = [name for name in found if not name.endswith(".safetensors")]
    if pickled:
        return (
            f"{directory} has its weights in {', '.join(pickled)}, a format that can run code and is never loaded;"
            " save them as safetensors, for instance with save_pretrained(...) of transformers."
        )
    others = f" (only {', '.join(found)})" if found else ""
    return f"{directory} has no {SINGLE_FILE} and no {INDEX_FILE}{others}; give a directory that has its weights so."
