"""Files read whole that somebody else made: only regular ones, and none larger than such files can rightly be."""

from __future__ import annotations

import errno
import io
import stat
from pathlib import Path

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
