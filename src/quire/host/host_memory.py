"""How the C library's allocator treats freed memory: given back while a model loads, kept while it runs.

Loading frees large blocks that nothing of their size follows: each is mapped for itself, so that it goes back whole. A step
frees what the next step needs again; glibc would give large blocks back meanwhile, and every step would fault them in
once more, page by page: 68,000 faults in a step of 2,048 tokens of SmolLM2 (docs/lab.md). mallopt(3) describes the
parameters. They hold for the whole process; without glibc nothing happens here.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3

LOADING = {MMAP_THRESHOLD: 512 << 10, TRIM_THRESHOLD: 4 << 20}
"""Blocks of this size and more are mapped one by one; so much at most stays free at the top of the heap.

The arrays that a chunk of weights passes through (`CHUNK_BYTES` in models/loader.py) are smaller: faulting in fresh pages
for each of them took longer than dequantizing (docs/lab.md).
"""
RUNNING = {MMAP_THRESHOLD: 32 << 20, TRIM_THRESHOLD: 1 << 30, TOP_PAD: 64 << 20}
"""The first is the largest value that glibc takes. The heap grows by the last at least."""


@contextmanager
def memory_for_loading() -> Iterator[None]:
    """What is freed inside goes back to the system; what is freed afterwards is kept for the next step."""
    _set(LOADING)
    try:
        yield
    finally:
        _set(RUNNING)


def give_back_freed_memory() -> None:
    """What lies free between the small blocks of all threads goes back to the system, once: of what made a tokenizer of 262,144 tokens
    that is 180 MiB (malloc_trim(3))."""
    malloc_trim = _of_glibc("malloc_trim")
    if malloc_trim is not None:
        malloc_trim(0)


def _set(parameters: dict[int, int]) -> None:
    mallopt = _of_glibc("mallopt")
    if mallopt is not None:
        for parameter, value in parameters.items():
            mallopt(parameter, value)


def _of_glibc(name: str) -> Callable[..., int] | None:
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
