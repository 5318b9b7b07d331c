"""Native kernels in a row, recorded once and run many times without Python: a step graph for the CPU.

While a Recording is entered, native functions called on this thread are not run: they are added to a program with the
addresses of their arrays. What they write lies in the recording's arena. An array that the recorded code has dropped gives
its memory to a later one: the program runs in the order in which it was recorded.
"""

from __future__ import annotations

import threading
import weakref
from collections import defaultdict, deque
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from quire.kernels.fresh_memory import LINE, LargePages

Bytes = npt.NDArray[np.uint8]


class NotRecordable(Exception):
    """The recorded code did something that has no native kernel."""


class Lent:
    """Memory of an arena, given back when this is gone."""

    __slots__ = ("__weakref__", "numbers")

    def __init__(self, numbers: Bytes) -> None:
        self.numbers = numbers


class Arena:
    """Memory for what a program computes, handed out again when the array it was for is gone. In `pages`, or small ones of its own."""

    def __init__(self, pages: LargePages | None = None) -> None:
        self._pages = pages
        self._free: defaultdict[int, list[Bytes]] = defaultdict(list)
        self._given_back: deque[Bytes] = deque()
        self.num_bytes = 0

    def lend(self, num_bytes: int) -> Lent:
        """Sizes are powers of two, so that programs for other numbers of rows find memory that fits."""
        size = max(LINE, 1 << (num_bytes - 1).bit_length())
        memory = self._free[size].pop() if self._free[size] else self._allocate(size)
        lent = Lent(memory)
        weakref.finalize(lent, self._given_back.append, memory)
        return lent

    def settle(self) -> None:
        """From here on, memory given back may be handed out again: all threads have met since it was read."""
        while self._given_back:
            memory = self._given_back.popleft()
            self._free[len(memory)].append(memory)

    def _allocate(self, size: int) -> Bytes:
        self.num_bytes += size
        if self._pages is not None:
            return self._pages.take(size)
        memory = np.zeros(size + LINE, np.uint8)
        first = -memory.ctypes.data % LINE
        return memory[first : first + size]


class Recording:
    """`program` is the module's; its arrays have room for `num_threads`."""

    def __init__(self, program: Any, arena: Arena, num_threads: int) -> None:
        self.program = program
        self.arena = arena
        self.num_threads = num_threads

    def __enter__(self) -> Self:
        self.arena.settle()
        _current.recording = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _current.recording = None


class _Current(threading.local):
    recording: Recording | None = None


_current = _Current()


def current_recording() -> Recording | None:
    """Of this thread."""
    return _current.recording
