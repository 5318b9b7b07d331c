"""Which safetensors files make up the model in a directory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import msgspec

from quire.checkpoint.small_file import MAX_LISTING_BYTES, read_json_as
from quire.errors import CheckpointError, ModelNotFoundError, UnsupportedModelError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
"""Files that can run code when they are loaded, and never are."""


class _Index(msgspec.Struct):
    weight_map: Annotated[dict[str, str], msgspec.Meta(min_length=1)]
    """File by tensor."""


def find_safetensors(directory: Path) -> list[Path]:
    """The weight files of a model directory: those its index names, or its one file.

    Raises CheckpointError if the index is damaged or a file it names is missing, UnsupportedModelError if the weights
    are pickled, ModelNotFoundError if there are none.
    """
    index = directory / INDEX_FILE
    if index.exists():
        return _find_shards(index)
    if (directory / SINGLE_FILE).exists():
        return [directory / SINGLE_FILE]
    others = sorted(directory.glob("*.safetensors"))
    for path in others:
        if not path.exists():
            raise CheckpointError(
                f"{path} is a link to {os.readlink(path)}, which is missing, as after an interrupted download;"
                " fetch the weights again."
            )
    if len(others) == 1:
        return others
    if others:
        raise CheckpointError(
            f"{directory} has {len(others)} safetensors files and no {INDEX_FILE} to say how they belong together;"
            f" fetch it, or keep one file named {SINGLE_FILE}."
        )
    pickled = sorted(path.name for path in directory.iterdir() if path.suffix in PICKLE_SUFFIXES)
    if pickled:
        raise UnsupportedModelError(
            f"{directory} has only pickled weights ({', '.join(pickled)}), which can run code when loaded; save the"
            " model as safetensors, for instance with save_pretrained of transformers."
        )
    raise ModelNotFoundError(f"{directory} has no {SINGLE_FILE} and no {INDEX_FILE}; fetch the weights too.")


def shard_names(index: Path) -> list[str]:
    """The files an index names, each a plain name beside it. Raises CheckpointError."""
    weight_map = read_json_as(index, _Index, MAX_LISTING_BYTES, "is not an index of safetensors files").weight_map
    for tensor, name in weight_map.items():
        if not name.endswith(".safetensors") or any(mark in name for mark in "/\\:\0"):
            raise CheckpointError(
                f"{index} says that tensor {tensor!r} is in {name!r}, which is no safetensors file beside it;"
                " fetch the index again."
            )
    return sorted(set(weight_map.values()))


def _find_shards(index: Path) -> list[Path]:
    names = shard_names(index)
    missing = [name for name in names if not (index.parent / name).exists()]
    if missing:
        raise CheckpointError(
            f"{index} names {len(names)} files, of which {len(missing)} are missing ({', '.join(missing[:3])}); fetch"
            " them into the same directory."
        )
    return [index.parent / name for name in names]
