"""Which cached block gives way when memory is wanted. A policy is a class and one registry line."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Protocol

from quire.config import EvictionPolicyName


class EvictionPolicy(Protocol):
    """The evictable blocks: cached, and held by no sequence."""

    def add(self, block: int, num_hits: int) -> None:
        """A block became evictable; sequences found its content `num_hits` times so far."""

    def remove(self, block: int) -> None:
        """A block is in use again, or its content is gone."""

    def pop(self) -> int:
        """Choose the block to evict; it is no longer evictable."""

    def __len__(self) -> int: ...


class LRUEviction:
    """The block unused for longest goes first. O(1): a dict keeps the order in which blocks became evictable."""

    def __init__(self) -> None:
        self._blocks: dict[int, None] = {}

    def add(self, block: int, num_hits: int) -> None:
        self._blocks[block] = None

    def remove(self, block: int) -> None:
        del self._blocks[block]

    def pop(self) -> int:
        block = next(iter(self._blocks))
        del self._blocks[block]
        return block

    def __len__(self) -> int:
        return len(self._blocks)


class LFUEviction:
    """The block found least often goes first, the longest unused of those. O(log n): a heap with lazy removal."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[int, int, int]] = {}
        self._heap: list[tuple[int, int, int]] = []
        """(num_hits, tick, block); an entry counts only while `_entries` holds it too."""
        self._tick = 0

    def add(self, block: int, num_hits: int) -> None:
        self._tick += 1
        entry = (num_hits, self._tick, block)
        self._entries[block] = entry
        heapq.heappush(self._heap, entry)
        if len(self._heap) > 2 * len(self._entries) + 64:
            self._heap = list(self._entries.values())
            heapq.heapify(self._heap)

    def remove(self, block: int) -> None:
        del self._entries[block]

    def pop(self) -> int:
        while True:
            entry = heapq.heappop(self._heap)
            block = entry[2]
            if self._entries.get(block) == entry:
                del self._entries[block]
                return block

    def __len__(self) -> int:
        return len(self._entries)


EVICTION_POLICIES: dict[EvictionPolicyName, Callable[[], EvictionPolicy]] = {
    "lru": LRUEviction,
    "lfu": LFUEviction,
}
