"""Memory straight from the system, which gives out a page of it when that is first written (mmap(2))."""

from __future__ import annotations

import errno
import mmap
import threading
import weakref
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from quire.errors import OutOfMemoryError

LINE = 64
CHUNK = 64 << 20
"""Asked for at once. What nobody writes stays without memory."""


def fresh_memory(num_bytes: int, *, touched: bool = False) -> mmap.mmap:
    """Zeros, at least one byte, given back with the last array made of it.

    In the system's small pages, one by one as they are written: of large ones a step would wait for many at the same time.
    `touched`: all at once and now, in large pages where the system has them. Raises OutOfMemoryError where a limit of addresses
    is reached (ulimit -v, overcommitting forbidden): then even memory that nobody writes is refused.
    """
    try:
        memory = mmap.mmap(-1, max(1, num_bytes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        if error.errno != errno.ENOMEM:
            raise
        raise OutOfMemoryError(
            f"The system refused {num_bytes / 2**20:,.0f} MiB of addresses to this process; raise its limit (ulimit -v), or"
            " lower num_blocks or memory_utilization."
        ) from error
    if touched:
        ask_for_large_pages(memory)
        # One byte of each page; numpy lets other threads run meanwhile.
        np.frombuffer(memory, np.uint8)[:: mmap.PAGESIZE] = 0
    return memory


def ask_for_large_pages(memory: mmap.mmap) -> None:
    """2 MiB each, where the system has them."""
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # That is what Python was built with; a kernel without them refuses.
        with suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)


class LargePages:
    """Memory in pages of 2 MiB, where the system has them, one piece after the other in chunks; a chunk is given back when the last
    of its pieces is gone. What is read often is found sooner there, and the first to write to a page waits for all of it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._chunk: weakref.ref[mmap.mmap] | None = None
        self._used = 0

    def take(self, num_bytes: int) -> npt.NDArray[np.uint8]:
        """At least one byte, on a cache line; zeros."""
        with self._lock:
            chunk = None if self._chunk is None else self._chunk()
            if chunk is None or self._used + num_bytes > len(chunk):
                chunk = fresh_memory(max(CHUNK, num_bytes))
                ask_for_large_pages(chunk)
                self._chunk, self._used = weakref.ref(chunk), 0
            first = self._used
            self._used += -(-num_bytes // LINE) * LINE
        return np.frombuffer(chunk, np.uint8, num_bytes, first)
