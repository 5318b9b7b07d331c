"""Finding stop strings in text that arrives in pieces."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopMatch:
    """`stop` ends after `end` characters of the text fed in so far."""

    stop: str
    end: int


class StopStringMatcher:
    """Watches a stream of text for any of the stop strings; each character costs the same however long they are.

    Each stop string keeps the length of its longest prefix that the text ends with (Knuth, Morris and Pratt 1977).
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [(stop, _borders(stop)) for stop in stops]
        self._matched = [0] * len(stops)
        self._num_chars = 0

    @property
    def num_held(self) -> int:
        """Characters at the end of the text that may be the start of a stop string."""
        return max(self._matched, default=0)

    def feed(self, text: str) -> StopMatch | None:
        """Take in the next piece; the match that ends first, of those that end together the longest."""
        first: StopMatch | None = None
        for index, (stop, borders) in enumerate(self._stops):
            end = self._feed_one(index, stop, borders, text)
            if end is None:
                continue
            if first is None or (end, -len(stop)) < (first.end, -len(first.stop)):
                first = StopMatch(stop, end)
        self._num_chars += len(text)
        return first

    def _feed_one(self, index: int, stop: str, borders: Sequence[int], text: str) -> int | None:
        """Where the first match of one stop string ends, if it ends in this piece."""
        matched = self._matched[index]
        found: int | None = None
        for position, char in enumerate(text, start=self._num_chars + 1):
            while matched and stop[matched] != char:
                matched = borders[matched]
            if stop[matched] == char:
                matched += 1
            if matched == len(stop):
                found = found or position
                matched = borders[matched]
        self._matched[index] = matched
        return found


@functools.lru_cache(maxsize=64)  # A request may have hundreds of samples, which have its stop strings in common.
def _borders(stop: str) -> Sequence[int]:
    """borders[k]: length of the longest proper prefix of stop[:k] that is also its suffix."""
    borders = [0, 0]
    length = 0
    for char in stop[1:]:
        while length and stop[length] != char:
            length = borders[length]
        if stop[length] == char:
            length += 1
        borders.append(length)
    return borders
