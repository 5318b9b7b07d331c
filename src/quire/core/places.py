"""Things named by string, so that choosing one, not importing the table it stands in, is what loads it."""

from __future__ import annotations

import importlib
from typing import Any


def load_place(place: str) -> Any:
    """`package.module:attribute`."""
    module, attribute = place.split(":")
    return getattr(importlib.import_module(module), attribute)
