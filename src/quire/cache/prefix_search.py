"""How much of a token sequence is cached, when some layers need all of it and others only the end."""

from __future__ import annotations

from typing import NamedTuple

from quire.cache.prefix_cache import PrefixCache
from quire.core.kv_layout import NULL_BLOCK


class PrefixHit(NamedTuple):
    """`tables[g]`: the cached blocks of group g, NULL_BLOCK where a sliding window no longer reaches."""

    num_tokens: int
    tables: list[list[int]]

    @property
    def blocks(self) -> list[int]:
        return [block for table in self.tables for block in table if block != NULL_BLOCK]


def first_block_in_window(window: int | None, position: int, block_size: int) -> int:
    """The first block that the token at `position`, or a later one, attends to."""
    return 0 if window is None else max(0, position - window + 1) // block_size


class PrefixSearch:
    """`windows[g]` is group g's sliding window, None for full attention."""

    def __init__(self, prefix_cache: PrefixCache, windows: list[int | None], block_size: int) -> None:
        self._windows = windows
        self.nothing = PrefixHit(0, [[] for _ in windows])
        self._prefix_cache = prefix_cache
        self._block_size = block_size

    def longest(self, contents: list[bytes], num_blocks: int) -> PrefixHit:
        """The longest prefix, of at most `num_blocks` blocks, that every group can continue from."""
        length, settled = num_blocks, False
        while length and not settled:
            settled = True
            for group, window in enumerate(self._windows):
                found = self._longest_in_group(group, window, contents, length)
                if found < length:
                    length, settled = found, False
        if not length:
            return self.nothing
        return PrefixHit(
            length * self._block_size, [self._table(g, contents, length) for g in range(len(self._windows))]
        )

    def _longest_in_group(self, group: int, window: int | None, contents: list[bytes], limit: int) -> int:
        """The most blocks, at most `limit`, after which the group can go on: it holds all that the next token reads."""
        blocks = self._prefix_cache.blocks(group)
        if window is None:
            return next((index for index in range(limit) if contents[index] not in blocks), limit)
        length = index = limit
        while index > first_block_in_window(window, length * self._block_size, self._block_size):
            index -= 1
            if contents[index] not in blocks:
                length = index
        return length

    def _table(self, group: int, contents: list[bytes], length: int) -> list[int]:
        blocks = self._prefix_cache.blocks(group)
        first = first_block_in_window(self._windows[group], length * self._block_size, self._block_size)
        return [NULL_BLOCK] * first + [blocks[content] for content in contents[first:length]]
