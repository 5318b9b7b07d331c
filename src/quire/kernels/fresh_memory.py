"""Memory straight from the system, which gives out a page of it when that is first written (mmap(2))."""

from __future__ import annotations

import mmap

import numpy as np


def fresh_memory(num_bytes: int, *, touched: bool = False) -> mmap.mmap:
    """Zeros, at least one byte, given back with the last array made of it.

    In the system's small pages, one by one as they are written: of large ones a step would wait for many at the same time.
    `touched`: all at once and now, in large pages where the system has them.
    """
    memory = mmap.mmap(-1, max(1, num_bytes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if touched:
        ask_for_large_pages(memory)
        # One byte of each page; numpy lets other threads run meanwhile.
        np.frombuffer(memory, np.uint8)[:: mmap.PAGESIZE] = 0
    return memory


def ask_for_large_pages(memory: mmap.mmap) -> None:
    """2 MiB each, where the system has them."""
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
