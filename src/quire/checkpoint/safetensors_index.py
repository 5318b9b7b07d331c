"""Which safetensors files make up a model."""

from __future__ import annotations

import json
from pathlib import Path

from quire.errors import CheckpointError, ModelNotFoundError, UnsupportedModelError

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
PICKLE_SUFFIXES = {".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"}


def shard_names(index: Path) -> list[str]:
    """The files an index names, each a plain name beside it. Raises CheckpointError if it is damaged."""
    try:
        weight_map = json.loads(index.read_bytes())["weight_map"]
        names = sorted(set(weight_map.values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{index} is not an index of safetensors files ({error!r}); fetch it again.") from error
    for name in names:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise CheckpointError(f"{index} names the file {name!r}; only safetensors files beside it are read.")
    if not names:
        raise CheckpointError(f"{index} names no files; fetch it again.")
    return names


def safetensors_files(directory: Path) -> tuple[Path, ...]:
    """The weight files of a model directory.

    Raises CheckpointError for missing shards, UnsupportedModelError for pickled weights, ModelNotFoundError for none.
    """
    index = directory / INDEX_FILE
    if index.exists():
        paths = tuple(directory / name for name in shard_names(index))
        missing = [path.name for path in paths if not path.is_file()]
        if missing:
            raise CheckpointError(
                f"{directory} lacks {len(missing)} of its {len(paths)} weight files ({', '.join(missing[:3])});"
                " fetch them again."
            )
        return paths
    if (directory / SINGLE_FILE).is_file():
        return (directory / SINGLE_FILE,)
    others = sorted(directory.glob("*.safetensors"))
    if len(others) == 1:
        return (others[0],)
    if others:
        raise CheckpointError(
            f"{directory} has {len(others)} safetensors files and no {INDEX_FILE} to say how they belong together;"
            f" fetch it, or keep one file named {SINGLE_FILE}."
        )
    pickles = sorted(path.name for path in directory.iterdir() if path.suffix in PICKLE_SUFFIXES)
    if pickles:
        raise UnsupportedModelError(
            f"{directory} has only pickled weights ({', '.join(pickles[:3])}), which can run code when loaded;"
            " save the model as safetensors (save_pretrained does) and use that."
        )
    raise ModelNotFoundError(f"{directory} has a config.json but no {SINGLE_FILE}; fetch the weights too.")
