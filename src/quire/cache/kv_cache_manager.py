"""The block tables of all sequences: what each needs, shares, and gives back."""

from __future__ import annotations

from dataclasses import dataclass

from quire.cache.block_pool import BlockPool
from quire.cache.eviction import EVICTION_POLICIES
from quire.cache.prefix_cache import PrefixCache, extend_hash_chain, root_hash
from quire.cache.prefix_search import PrefixHit, PrefixSearch, first_block_in_window
from quire.config import EvictionPolicyName
from quire.core.kv_layout import NULL_BLOCK, KVCacheConfig, num_blocks_per_sequence
from quire.core.sequence import Sequence


@dataclass(slots=True, eq=False)
class BlockTables:
    """One sequence's block tables, one for each KV group, all of one length.

    `capacity` is in tokens. `first_kept[g]`: entries of group g before it are NULL_BLOCK, out of the window.
    `num_registered`: leading blocks already offered to the prefix cache.
    """

    tables: list[list[int]]
    first_kept: list[int]
    num_registered: int
    capacity: int


class KVCacheManager:
    """Owns every block table. Sequences are only read here; their counters belong to the scheduler."""

    def __init__(
        self,
        config: KVCacheConfig,
        *,
        model_identity: str = "",
        enable_prefix_caching: bool = True,
        eviction_policy: EvictionPolicyName = "lru",
    ) -> None:
        self.config = config
        self.num_prefix_query_tokens = 0
        """Prompt tokens looked up in the prefix cache, and below, how many of them were found."""
        self.num_prefix_hit_tokens = 0
        self._block_size = config.block_size
        self._num_groups = len(config.groups)
        self._windows = [group.spec.window for group in config.groups]
        self._sliding = [(group, window) for group, window in enumerate(self._windows) if window is not None]
        self._enable_prefix_caching = enable_prefix_caching
        self._model_identity = model_identity
        self._prefix_cache = PrefixCache(self._num_groups)
        self._search = PrefixSearch(self._prefix_cache, self._windows, config.block_size)
        self.pool = BlockPool(config.num_blocks - 1, self._prefix_cache, EVICTION_POLICIES[eviction_policy]())
        self._tables: dict[int, BlockTables] = {}
        self._hash_chains: dict[int, list[bytes]] = {}
        self._copies: dict[int, int] = {}
        """Destination -> source of the copies the next step must make."""

    def block_ids(self, sequence: Sequence) -> list[list[int]]:
        """A copy of the sequence's block table in each group."""
        return [table.copy() for table in self._tables[sequence.seq_id].tables]

    def tables(self, sequence: Sequence) -> BlockTables | None:
        """The sequence's block tables, to be read only; None if it holds no blocks."""
        return self._tables.get(sequence.seq_id)

    def capacity(self, sequence: Sequence) -> int:
        """Tokens the sequence's blocks have room for."""
        return self._tables[sequence.seq_id].capacity

    def looks_up(self, sequence: Sequence) -> bool:
        """Whether its prefix is looked up. Prompt logprobs come from computing the prompt."""
        return self._enable_prefix_caching and sequence.sampling_params.prompt_logprobs is None

    def find_prefix(self, sequence: Sequence) -> PrefixHit:
        """The longest cached prefix that leaves at least one token to compute; empty for sequences that are not looked up."""
        if not self.looks_up(sequence):
            return self._search.nothing
        num_blocks = (sequence.num_known - 1) // self._block_size
        return self._search.longest(self._hash_chain(sequence, num_blocks), num_blocks)

    def admit(self, sequence: Sequence, hit: PrefixHit, end: int, headroom: int) -> bool:
        """Give a sequence its first tables: the hit's blocks, and fresh ones up to token `end`.

        False, and nothing changes, unless `headroom` blocks stay available beside them.
        """
        num_new = (-(-end // self._block_size) - len(hit.tables[0])) * self._num_groups
        if num_new + self._num_idle(hit) + headroom > self.pool.num_available:
            return False
        for block in hit.blocks:
            self.pool.share(block)
            self._prefix_cache.record_hit(block)
        self._tables[sequence.seq_id] = BlockTables(
            tables=[table.copy() for table in hit.tables],
            first_kept=self._first_blocks(hit.num_tokens),
            num_registered=len(hit.tables[0]),
            capacity=hit.num_tokens,
        )
        self.extend(sequence, hit.num_tokens, end)
        return True

    def extend(self, sequence: Sequence, start: int, end: int) -> list[list[int]] | None:
        """Make room for computing tokens [start, end); returns the blocks appended in each group, [] if none were.

        None if the pool has too few. Blocks that a window at `start` no longer reaches are given back first: a
        step in flight may still read them, but it runs before any step that writes to them. Blocks that the range
        fills are findable at once, for later rows of the same step too: every row's KV is written before any is read.
        """
        blocks = self._tables[sequence.seq_id]
        if self._sliding:
            self._leave_window(blocks, start)
        num_new = -(-(end - blocks.capacity) // self._block_size)
        if num_new * self._num_groups > self.pool.num_available:
            return None
        appended: list[list[int]] = []
        if num_new > 0:
            for table in blocks.tables:
                new_blocks = self.pool.allocate(num_new)
                table += new_blocks
                appended.append(new_blocks)
            blocks.capacity += num_new * self._block_size
        self._register(sequence, blocks, end)
        return appended

    def reachable_end(self, sequence: Sequence) -> int:
        """How far `extend` could go with the blocks available now."""
        num_new = self.pool.num_available // self._num_groups
        return self._tables[sequence.seq_id].capacity + num_new * self._block_size

    def reachable_end_after(self, hit: PrefixHit) -> int:
        """How far `admit` could go with this hit and the blocks available now."""
        num_available = self.pool.num_available - self._num_idle(hit)
        return hit.num_tokens + num_available // self._num_groups * self._block_size

    def fork(self, parent: Sequence, child: Sequence, num_tokens: int) -> bool:
        """Let a child share the blocks of its parent's first `num_tokens` tokens.

        False if the parent has no blocks, or a sliding window has left behind what the child would need.
        The child may write only after `make_writable`.
        """
        blocks = self._tables.get(parent.seq_id)
        if blocks is None:
            return False
        assert num_tokens <= blocks.capacity, "only planned tokens are shared"
        first_kept = self._first_blocks(num_tokens)
        if any(kept > needed for kept, needed in zip(blocks.first_kept, first_kept, strict=True)):
            return False
        num_blocks = -(-num_tokens // self._block_size)
        tables = []
        for table, first in zip(blocks.tables, first_kept, strict=True):
            tables.append([NULL_BLOCK] * first + table[first:num_blocks])
            for block in table[first:num_blocks]:
                self.pool.share(block)
        num_full = num_tokens // self._block_size
        num_registered = min(blocks.num_registered, num_full)
        self._hash_chains[child.seq_id] = self._hash_chains.get(parent.seq_id, [])[:num_full]
        self._tables[child.seq_id] = BlockTables(tables, first_kept, num_registered, num_blocks * self._block_size)
        return True

    def make_writable(self, sequence: Sequence, start: int) -> bool:
        """Copy on write: a forked sequence gets its own copy of the block that token `start` goes to.

        The last holder of a block keeps it as it is. False, and nothing changes, if the pool has too few blocks.
        """
        blocks = self._tables[sequence.seq_id]
        index = start // self._block_size
        if start == blocks.capacity:
            return True
        shared = [table for table in blocks.tables if not self.pool.is_exclusive(table[index])]
        if len(shared) > self.pool.num_available:
            return False
        for table, copy in zip(shared, self.pool.allocate(len(shared)), strict=True):
            original = table[index]
            # A copy not made yet has nothing to copy: its source has.
            self._copies[copy] = self._copies.get(original, original)
            table[index] = copy
            self.pool.release(original)
        return True

    def take_copies(self) -> list[tuple[int, int]]:
        """(source, destination) of the copies the next step must make before it computes.

        One whose holder is gone does no harm: whoever has the destination now writes it before reading it.
        """
        if not self._copies:
            return []
        copies = [(source, destination) for destination, source in self._copies.items()]
        self._copies.clear()
        return copies

    def free(self, sequence: Sequence) -> None:
        """Give back every block of a sequence, tail first: a prefix is worth more than what follows it."""
        blocks = self._tables.pop(sequence.seq_id, None)
        if blocks is not None:
            self._register(sequence, blocks, sequence.num_planned)
            for index in range(len(blocks.tables[0]) - 1, -1, -1):
                for table in blocks.tables:
                    if table[index] != NULL_BLOCK:
                        self.pool.release(table[index])
        self._hash_chains.pop(sequence.seq_id, None)

    def forget_content(self, sequence: Sequence) -> None:
        """Nobody may find the blocks of this sequence's tokens any more: they may hold NaN."""
        if not self._enable_prefix_caching:
            return
        for content in self._hash_chain(sequence, sequence.num_known // self._block_size):
            for group in range(self._num_groups):
                block = self._prefix_cache.blocks(group).get(content)
                if block is not None:
                    self.pool.forget_content(block)
        self._hash_chains.pop(sequence.seq_id, None)

    def reset_prefix_cache(self) -> bool:
        """Forget all cached content. False, and nothing changes, while any block is held."""
        if self.pool.num_held:
            return False
        for block in self._prefix_cache.cached_blocks():
            self.pool.forget_content(block)
        return True

    def num_blocks_at_most(self, num_tokens: int, max_chunk: int) -> int:
        """Blocks one sequence holds at most until `num_tokens` tokens are computed, in chunks of `max_chunk`."""
        return num_blocks_per_sequence(self.config.groups, self._block_size, num_tokens, max_chunk)

    def _first_blocks(self, position: int) -> list[int]:
        """In each group, the first block that the token at `position`, or a later one, attends to."""
        return [first_block_in_window(window, position, self._block_size) for window in self._windows]

    def _num_idle(self, hit: PrefixHit) -> int:
        """Blocks of a hit that nobody holds: taking them leaves fewer to hand out."""
        return sum(self.pool.reference_counts[block] == 0 for block in hit.blocks)

    def _hash_chain(self, sequence: Sequence, num_blocks: int) -> list[bytes]:
        chain = self._hash_chains.get(sequence.seq_id)
        if chain is None:
            chain = self._hash_chains[sequence.seq_id] = []
        if len(chain) < num_blocks:
            root = root_hash(self._model_identity, sequence.cache_salt)
            extend_hash_chain(chain, root, sequence.token_ids, self._block_size, num_blocks)
        return chain

    def _register(self, sequence: Sequence, blocks: BlockTables, end: int) -> None:
        """Offer to the prefix cache the blocks that tokens [0, end) fill, as far as the tokens' values are known."""
        num_full = min(end, sequence.num_known) // self._block_size
        if num_full <= blocks.num_registered or not self._enable_prefix_caching:
            return
        chain = self._hash_chain(sequence, num_full)
        for index in range(blocks.num_registered, num_full):
            for group, table in enumerate(blocks.tables):
                if table[index] != NULL_BLOCK:
                    self._prefix_cache.insert(group, chain[index], table[index])
        blocks.num_registered = num_full

    def _leave_window(self, blocks: BlockTables, start: int) -> None:
        """Give back the blocks that no token from `start` on attends to."""
        for group, window in self._sliding:
            table = blocks.tables[group]
            first = first_block_in_window(window, start, self._block_size)
            for index in range(blocks.first_kept[group], first):
                self.pool.release(table[index])
                table[index] = NULL_BLOCK
            blocks.first_kept[group] = first
