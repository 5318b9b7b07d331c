"""Files read whole that somebody else made: only regular ones, and none larger than such files can rightly be."""

from __future__ import annotations

import errno
import io
import json
import stat
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from quire.errors import CheckpointError, in_words

T = TypeVar("T")

MAX_SETTINGS_BYTES = 2**24
"""Of a config, a list of steps or a chat template; the largest known, a tokenizer_config.json, has a tenth."""
MAX_LISTING_BYTES = 2**27
"""Of a vocabulary, of merges or of an index of weights; the largest known, Gemma 3's tokenizer.json, has a quarter."""


def read_small_file(path: Path, max_bytes: int) -> bytes:
    """As `Path.read_bytes`. Raises its OSError, in words for a sentence, for what is no regular file or larger too."""
    state = path.stat()
    # A pipe or a device would block or never end.
    if not (stat.S_ISREG(state.st_mode) or stat.S_ISDIR(state.st_mode)):
        raise OSError(errno.EINVAL, "it is a pipe or a device, not a regular file")
    if state.st_size > max_bytes:
        raise OSError(errno.EFBIG, f"it has {state.st_size:,} bytes, where {max_bytes:,} are allowed")
    with path.open("rb") as file:
        # No more than was announced: what the system makes up as it is read, as in /proc, announces nothing.
        return file.read(state.st_size)


def read_small_text(path: Path, max_bytes: int) -> str:
    """As `Path.read_text` of UTF-8, line ends included. Raises as `read_small_file` does, and UnicodeDecodeError."""
    return io.TextIOWrapper(io.BytesIO(read_small_file(path, max_bytes)), encoding="utf-8").read()


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty if there is no such file. Raises CheckpointError if it holds anything else."""
    try:
        content = json.loads(read_small_file(path, MAX_SETTINGS_BYTES))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} could not be read as JSON: {in_words(error)}; fetch the file again.") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds a JSON {type(content).__name__}, not an object; fetch the file again.")
    return content


def read_json_as(path: Path, kind: type[T], max_bytes: int, failing: str, *, if_missing: T | None = None) -> T:
    """The JSON in a file, of one kind; `failing` says, in an error, of any other what is wrong with it.

    Raises CheckpointError; for a file that is not there too, unless `if_missing` stands for one.
    """
    try:
        return msgspec.json.decode(read_small_file(path, max_bytes), type=kind)
    except OSError as error:
        if isinstance(error, FileNotFoundError) and if_missing is not None:
            return if_missing
        raise CheckpointError(f"{path} could not be read: {in_words(error)}; fetch the file again.") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError(f"{path} {failing}: {error}; fetch the file again.") from error
