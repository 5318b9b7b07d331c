"""Free, cached, held: every block is in exactly one of the three."""

from __future__ import annotations

from quire.cache.block_pool import BlockPool
from quire.cache.eviction import LRUEviction
from quire.cache.prefix_cache import PrefixCache
from quire.core.kv_layout import NULL_BLOCK
from quire.core.view import BlockState


def make_pool(num_blocks: int = 4) -> tuple[BlockPool, PrefixCache]:
    prefix_cache = PrefixCache(num_groups=1)
    return BlockPool(num_blocks, prefix_cache, LRUEviction()), prefix_cache


def counts(pool: BlockPool) -> tuple[int, int, int]:
    return pool.num_free, pool.num_cached, pool.num_held


def test_null_block_is_never_handed_out() -> None:
    pool, _ = make_pool(4)
    blocks = pool.allocate(4)
    assert sorted(blocks) == [1, 2, 3, 4]
    assert NULL_BLOCK not in blocks
    assert counts(pool) == (0, 0, 4)


def test_released_blocks_stay_findable_until_they_are_wanted() -> None:
    pool, prefix_cache = make_pool(3)
    first, second = pool.allocate(2)
    prefix_cache.insert(0, b"first", first)
    prefix_cache.insert(0, b"second", second)
    pool.release(first)
    pool.release(second)
    assert counts(pool) == (1, 2, 0)
    assert first not in pool.allocate(1), "free blocks go before cached ones"
    assert pool.allocate(1) == [first]
    assert prefix_cache.blocks(0) == {b"second": second}
    assert counts(pool) == (0, 1, 2)


def test_a_shared_block_goes_back_with_its_last_holder() -> None:
    pool, prefix_cache = make_pool(2)
    (block,) = pool.allocate(1)
    pool.share(block)
    assert not pool.is_exclusive(block)
    pool.release(block)
    assert pool.is_exclusive(block)
    assert counts(pool) == (1, 0, 1)
    prefix_cache.insert(0, b"content", block)
    assert not pool.is_exclusive(block), "others can find it"
    pool.release(block)
    pool.share(block)
    assert counts(pool) == (1, 0, 1)


def test_forgotten_content_frees_a_cached_block_and_leaves_a_held_one() -> None:
    pool, prefix_cache = make_pool(2)
    held, cached = pool.allocate(2)
    for block in (held, cached):
        prefix_cache.insert(0, b"%d" % block, block)
    pool.release(cached)
    pool.forget_content(held)
    pool.forget_content(cached)
    assert counts(pool) == (1, 0, 1)
    assert len(prefix_cache) == 0
    pool.release(held)
    assert counts(pool) == (2, 0, 0)


def test_states_of_all_blocks_in_order() -> None:
    pool, prefix_cache = make_pool(4)
    private, shared, cached = pool.allocate(3)
    pool.share(shared)
    prefix_cache.insert(0, b"content", cached)
    pool.release(cached)
    expected = {private: BlockState.PRIVATE, shared: BlockState.SHARED, cached: BlockState.CACHED}
    assert list(pool.states()) == [expected.get(block, BlockState.FREE) for block in range(1, 5)]
