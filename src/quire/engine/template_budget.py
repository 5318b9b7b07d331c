"""What one rendering of a template may spend, and an account of it. Needs no jinja2."""

from __future__ import annotations

import time
from collections.abc import ItemsView, KeysView, ValuesView
from dataclasses import dataclass

CHARS_PER_VALUE = 16
"""What every value counts for beside its characters: some of its memory, and the time to look at it."""
STEPS_PER_TICK = 64
MAX_DEPTH = 100
"""Lists within lists. Python itself can overflow its stack on values nested much deeper."""
_CONTAINERS = (list, tuple, dict, set, frozenset, KeysView, ValuesView, ItemsView)


@dataclass(frozen=True, slots=True)
class TemplateLimits:
    """`seconds` is processor time of the rendering thread, so that a busy machine fails no honest template."""

    seconds: float = 2.0
    max_size: int = 8_000_000
    """Size of one value: its characters or bits, and CHARS_PER_VALUE for it and every item in it, however deep."""
    max_total: int = 128_000_000
    """Characters and list items of all values made, together."""


class TemplateLimitError(Exception):
    """The template asked for more than a rendering may spend."""


class TemplateBudget:
    """Keeps every value a template can reach within `max_size`, so that no single operation on one takes long."""

    def __init__(self, limits: TemplateLimits) -> None:
        self._limits = limits
        self._deadline = time.thread_time() + limits.seconds
        self._spent = 0
        self._num_steps = 0
        # id -> (value, size, depth). Holding the value keeps its id from being used again.
        self._measured: dict[int, tuple[object, int, int]] = {}

    def tick(self, num_chars: int = 0) -> None:
        """Called wherever a template can loop; `num_chars` is the text it may write before the next call."""
        self._spent += num_chars
        if self._spent > self._limits.max_total:
            raise TemplateLimitError(f"it made more than {self._limits.max_total} characters in all")
        if time.thread_time() > self._deadline:
            raise TemplateLimitError(f"it ran for more than {self._limits.seconds} s")

    def step(self) -> None:
        """As `tick`, for what takes about as long as reading the clock, which is read once in so many."""
        self._num_steps += 1
        if self._num_steps % STEPS_PER_TICK == 0:
            self.tick()

    def check_size(self, size: int) -> None:
        """Refuse an operation before it makes a value of that size."""
        if size > self._limits.max_size:
            raise TemplateLimitError(f"it would make a value of size {size}, the limit is {self._limits.max_size}")

    def check_indented(self, value: object, width: int) -> None:
        """Refuse JSON whose indentation alone, `width` characters a level before every value, would be too large."""
        size, depth = self._measure(value)
        self.check_size(size // CHARS_PER_VALUE * depth * width)

    def charge(self, value: object) -> None:
        """Account for a value that was just made."""
        size = self.size(value)
        self.check_size(size)
        if isinstance(value, str):
            self.tick(size)
        elif isinstance(value, (list, tuple, dict)):
            self.tick(CHARS_PER_VALUE * len(value))

    def size(self, value: object) -> int:
        """Characters and items of a value with all it holds; what it holds twice counts twice."""
        return self._measure(value)[0]

    def _measure(self, value: object) -> tuple[int, int]:
        """Size and depth. Each container is walked once, so shared parts cost nothing to measure."""
        if isinstance(value, (str, bytes)):
            return CHARS_PER_VALUE + len(value), 0
        if isinstance(value, int):
            return max(CHARS_PER_VALUE, value.bit_length()), 0  # It may be written out, in binary digits.
        if not isinstance(value, _CONTAINERS):
            return CHARS_PER_VALUE, 0
        known = self._measured.get(id(value))
        if known is not None:
            return known[1], known[2]
        size, depth = CHARS_PER_VALUE, 0
        for part in (*value.keys(), *value.values()) if isinstance(value, dict) else value:
            part_size, part_depth = self._measure(part)
            size += part_size
            self.check_size(size)
            depth = max(depth, part_depth + 1)
        if depth > MAX_DEPTH:
            raise TemplateLimitError(f"a value is nested deeper than {MAX_DEPTH} levels")
        self._measured[id(value)] = (value, size, depth)
        return size, depth
