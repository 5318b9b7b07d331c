"""Where quire keeps what it fetched or rebuilt."""

from __future__ import annotations

import os
from pathlib import Path

from quire.errors import QuireError


def cache_dir() -> Path:
    """QUIRE_CACHE, or `quire` under the user's XDG cache directory. May not exist yet.

    `models/` holds the built-in models, `tokenizers/` the tokenizers rebuilt from GGUF files,
    `packed/` weights as the kernels read them. Raises QuireError where a user has no home, as in some containers.
    """
    chosen = os.environ.get("QUIRE_CACHE")
    xdg = os.environ.get("XDG_CACHE_HOME")
    try:
        if chosen:
            return Path(chosen).expanduser()
        return (Path(xdg) if xdg else Path.home() / ".cache") / "quire"
    except RuntimeError as error:
        raise QuireError(
            f"There is no home directory for quire's cache, {chosen or '~/.cache/quire'}; set QUIRE_CACHE to a directory"
            " that you may write to."
        ) from error
