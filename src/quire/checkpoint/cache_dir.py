"""Where quire keeps what it fetched or rebuilt."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """QUIRE_CACHE, or `quire` under the user's XDG cache directory. May not exist yet.

    `models/` holds the built-in models, `tokenizers/` the tokenizers rebuilt from GGUF files,
    `packed/` weights as the kernels read them.
    """
    chosen = os.environ.get("QUIRE_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    xdg = os.environ.get("XDG_CACHE_HOME")
    return (Path(xdg) if xdg else Path.home() / ".cache") / "quire"
