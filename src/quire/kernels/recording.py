"""Native kernels in a row, recorded once and run many times without Python: a step graph for the CPU.

While a Recording is entered, native functions called on this thread are not run: they are added to a program with the
addresses of their arrays. What they write lies in the recording's arena. An array that the recorded code has dropped gives
its memory to a later one: the program runs in the order in which it was recorded.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from quire.kernels.fresh_memory import CHUNK, LINE, LargePages, fresh_memory

Bytes = npt.NDArray[np.uint8]


class NotRecordable(Exception):
    """The recorded code did something that has no native kernel."""


class Lent:
    """Memory of an arena, given back when this is gone."""

    __slots__ = ("__weakref__", "numbers")

    def __init__(self, numbers: Bytes) -> None:
        self.numbers = numbers


class Span(NamedTuple):
    """Bytes [first, last) of a piece of memory."""

    piece: int
    first: int
    last: int


class Arena:
    """Memory for what programs compute, handed out again when the array it was for is gone. In `pages`, or small ones of its own.

    A program is laid out as it is recorded, each array in the first gap that is large enough: so little memory is touched, and
    programs that run in turn lie on top of each other.
    """

    def __init__(self, pages: LargePages | None = None) -> None:
        self._pages = pages
        self._pieces: list[Bytes] = []
        self._gaps: list[Span] = []
        """In order, none beside another."""
        self._given_back: deque[Span] = deque()
        self._used: list[int] = []

    @property
    def num_bytes(self) -> int:
        """Up to the end of what was ever lent, of all pieces."""
        return sum(self._used)

    def lend(self, num_bytes: int) -> Lent:
        """On a cache line."""
        size = max(1, -(-num_bytes // LINE)) * LINE
        at = next((i for i, gap in enumerate(self._gaps) if gap.last - gap.first >= size), None)
        if at is None:
            at = self._add_piece(size)
        piece, first, end = self._gaps[at]
        last = first + size
        self._gaps[at : at + 1] = [] if last == end else [Span(piece, last, end)]
        self._used[piece] = max(self._used[piece], last)
        lent = Lent(self._pieces[piece][first:last])
        weakref.finalize(lent, self._given_back.append, Span(piece, first, last))
        return lent

    def settle(self) -> None:
        """From here on, memory given back may be handed out again: all threads have met since it was read."""
        if not self._given_back:
            return
        while self._given_back:
            self._gaps.append(self._given_back.popleft())
        self._gaps.sort()
        joined = self._gaps[:1]
        for gap in self._gaps[1:]:
            before = joined[-1]
            if before.piece == gap.piece and before.last == gap.first:
                joined[-1] = Span(gap.piece, before.first, gap.last)
            else:
                joined.append(gap)
        self._gaps = joined

    def _add_piece(self, size: int) -> int:
        """The number of the gap that it is."""
        size = max(size, CHUNK)
        # What nobody writes stays without memory.
        piece = np.frombuffer(fresh_memory(size), np.uint8) if self._pages is None else self._pages.take(size)
        self._pieces.append(piece)
        self._used.append(0)
        self._gaps.append(Span(len(self._pieces) - 1, 0, size))
        return len(self._gaps) - 1


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
