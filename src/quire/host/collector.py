"""Python's garbage collector in quire's own processes. A program that uses quire keeps its own."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def made_to_last() -> Iterator[None]:
    """What is made inside stays as long as the process: the collector does not run meanwhile, nor does it walk it later."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
