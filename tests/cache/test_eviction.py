"""Which block each policy gives up."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from quire.cache.eviction import EVICTION_POLICIES, LFUEviction, LRUEviction


def test_lru_gives_up_the_longest_unused() -> None:
    policy = LRUEviction()
    for block in (3, 1, 2):
        policy.add(block, num_hits=9 - block)
    policy.remove(3)
    policy.add(3, num_hits=0)
    assert [policy.pop() for _ in range(3)] == [1, 2, 3]


def test_lfu_gives_up_the_least_found_and_the_longest_unused_of_equals() -> None:
    policy = LFUEviction()
    for block, num_hits in ((1, 5), (2, 1), (3, 0), (4, 1)):
        policy.add(block, num_hits)
    policy.remove(3)
    policy.add(3, num_hits=1)
    assert [policy.pop() for _ in range(4)] == [2, 4, 3, 1]


@given(st.sampled_from(sorted(EVICTION_POLICIES)), st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3))))
def test_policies_agree_with_a_sorted_list(name: str, operations: list[tuple[int, int]]) -> None:
    """An operation on a block that is in makes it leave; on one that is out, enter. Block 9 pops."""
    policy = EVICTION_POLICIES[name]()
    entries: dict[int, tuple[int, int]] = {}
    for tick, (block, num_hits) in enumerate(operations):
        if block == 9 and entries:
            victim = min(entries, key=entries.__getitem__)
            assert policy.pop() == victim
            del entries[victim]
        elif block in entries:
            policy.remove(block)
            del entries[block]
        elif block != 9:
            policy.add(block, num_hits)
            entries[block] = (num_hits if name == "lfu" else 0, tick)
        assert len(policy) == len(entries)


def test_lfu_memory_is_bounded_by_the_blocks_it_holds() -> None:
    """A hot block that comes and goes for ever leaves nothing behind."""
    policy = LFUEviction()
    for num_hits in range(10_000):
        policy.add(7, num_hits)
        policy.remove(7)
    assert len(policy._heap) < 200


def test_lfu_keeps_its_order_however_often_it_has_made_room() -> None:
    """Blocks that come and go leave entries behind, which are swept out together."""
    rng = random.Random(0)
    policy, entries = LFUEviction(), {}
    for tick in range(2000):
        block = rng.randrange(40)
        if block in entries:
            policy.remove(block)
        entries[block] = (rng.randrange(5), tick)
        policy.add(block, entries[block][0])
    assert [policy.pop() for _ in range(len(entries))] == sorted(entries, key=entries.__getitem__)
