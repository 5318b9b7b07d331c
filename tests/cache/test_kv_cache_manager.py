"""Block tables: what the scheduler cannot see from outside."""

from __future__ import annotations

from tests.scheduler.harness import FULL, kv_config, make_sequence, sliding

from quire.cache.kv_cache_manager import KVCacheManager


def admit(kv: KVCacheManager, sequence, end: int) -> bool:
    hit = kv.find_prefix(sequence)
    if not kv.admit(sequence, hit, end, headroom=0):
        return False
    sequence.num_planned = end
    return True


def test_admission_without_room_changes_nothing() -> None:
    kv = KVCacheManager(kv_config(num_blocks=5), model_identity="m", eviction_policy="lfu")
    first = make_sequence(0, 12)
    assert admit(kv, first, 12)
    kv.free(first)
    assert (kv.pool.num_free, kv.pool.num_cached) == (1, 3)
    large = make_sequence(1, [*first.token_ids, *range(12)])
    assert not admit(kv, large, 24)
    assert kv.tables(large) is None
    assert (kv.pool.num_free, kv.pool.num_cached) == (1, 3)
    assert not kv.admit(large, kv.find_prefix(large), 16, headroom=1), "3 cached blocks and 1 free, and 1 to spare"
    assert kv.admit(large, kv.find_prefix(large), 16, headroom=0)


def test_a_hit_is_not_evicted_to_make_room_for_the_rest() -> None:
    kv = KVCacheManager(kv_config(num_blocks=5), model_identity="m")
    first = make_sequence(0, 8)
    assert admit(kv, first, 8)
    shared = kv.block_ids(first)[0]
    kv.free(first)
    second = make_sequence(1, [*first.token_ids, *range(8)])
    assert admit(kv, second, 16)
    assert kv.block_ids(second)[0][:2] == shared


def test_lfu_keeps_what_is_often_found() -> None:
    for policy, survivor in (("lru", 1), ("lfu", 0)):
        kv = KVCacheManager(kv_config(num_blocks=5), model_identity="m", eviction_policy=policy)
        popular, recent = make_sequence(0, [*range(8), 1]), make_sequence(1, [*range(50, 58), 1])
        for seq_id in range(3):
            again = make_sequence(10 + seq_id, popular.token_ids)
            assert admit(kv, again, 8 if seq_id == 0 else 9)
            kv.free(again)
        assert admit(kv, recent, 8)
        kv.free(recent)
        large = make_sequence(2, 8)
        assert admit(kv, large, 8)
        found = [kv.find_prefix(make_sequence(20 + i, s.token_ids)).num_tokens for i, s in enumerate((popular, recent))]
        assert found[survivor] == 8
        assert found[1 - survivor] == 0


def test_a_copy_may_take_the_last_block_and_who_needs_none_takes_none() -> None:
    kv = KVCacheManager(kv_config(num_blocks=4), model_identity="m", enable_prefix_caching=False)
    parent, child = (make_sequence(i, list(range(8))) for i in range(2))
    assert admit(kv, parent, 8)
    assert kv.fork(parent, child, 7)
    assert kv.make_writable(child, 7)
    assert kv.pool.num_available == 0
    kv.take_copies()
    assert kv.make_writable(child, 7)
    assert kv.make_writable(parent, 7)
    assert kv.take_copies() == []


def test_a_copy_of_a_copy_not_made_yet_reads_the_original() -> None:
    kv = KVCacheManager(kv_config(), model_identity="m")
    parent, child, grandchild = (make_sequence(i, list(range(10))) for i in range(3))
    assert admit(kv, parent, 10)
    assert kv.fork(parent, child, 9)
    assert kv.make_writable(child, 9)
    assert kv.fork(child, grandchild, 9)
    assert kv.make_writable(grandchild, 9)
    original = kv.block_ids(parent)[0][2]
    assert kv.take_copies() == [(original, kv.block_ids(s)[0][2]) for s in (child, grandchild)]
    assert kv.take_copies() == []


def test_a_block_may_be_copied_and_copied_to_in_one_step() -> None:
    """Two parents are gone before the copies of their blocks are made, and grandchildren get those blocks."""
    kv = KVCacheManager(kv_config(), model_identity="m")
    parents, children, grandchildren = ([make_sequence(3 * g + i, [i] * 3) for i in (0, 1)] for g in range(3))
    assert all(admit(kv, parent, 3) for parent in parents)
    of_parents = [kv.block_ids(parent)[0][0] for parent in parents]
    for parent, child in zip(parents, children, strict=True):
        assert kv.fork(parent, child, 2)
        assert kv.make_writable(child, 2)
    for parent in parents:
        kv.free(parent)
    for child, grandchild in zip(children, grandchildren, strict=True):
        assert kv.fork(child, grandchild, 2)
        assert kv.make_writable(grandchild, 2)
    assert [kv.block_ids(grandchild)[0][0] for grandchild in grandchildren] == of_parents[::-1]
    of_others = [kv.block_ids(sequence)[0][0] for sequence in (*children, *grandchildren)]
    assert kv.take_copies() == list(zip(of_parents * 2, of_others, strict=True))


def test_a_copy_whose_holder_is_gone_is_not_made() -> None:
    kv = KVCacheManager(kv_config(), model_identity="m")
    parent, child, other = (make_sequence(i, list(range(10))) for i in range(3))
    assert admit(kv, parent, 10)
    assert kv.fork(parent, child, 9)
    assert kv.make_writable(child, 9)
    kv.free(child)
    assert kv.fork(parent, other, 9)
    assert kv.make_writable(other, 9)
    assert kv.take_copies() == [(kv.block_ids(parent)[0][2], kv.block_ids(other)[0][2])]


def test_a_child_offers_its_own_blocks() -> None:
    kv = KVCacheManager(kv_config(), model_identity="m")
    parent = make_sequence(0, list(range(16)))
    assert admit(kv, parent, 16)
    child = make_sequence(1, [*range(6), *range(100, 110)])
    assert kv.fork(parent, child, 6)
    assert kv.make_writable(child, 6)
    kv.extend(child, 6, 16)
    assert kv.find_prefix(make_sequence(2, [*child.token_ids, 7])).num_tokens == 16


def test_tokens_without_a_value_are_not_offered() -> None:
    """Block 2 is filled by a token that only the worker knows yet."""
    kv = KVCacheManager(kv_config(block_size=1), model_identity="m")
    sequence = make_sequence(0, list(range(10)))
    assert admit(kv, sequence, 10)
    kv.extend(sequence, 10, 11)
    assert len(kv._prefix_cache) == 10
    sequence.token_ids.append(77)
    kv.extend(sequence, 11, 12)
    assert kv.find_prefix(make_sequence(1, [*range(10), 77, 5])).num_tokens == 11


def test_a_block_that_left_the_window_before_its_token_was_known_is_not_offered() -> None:
    kv = KVCacheManager(kv_config(block_size=1, specs=(FULL, sliding(2))), model_identity="m")
    sequence = make_sequence(0, list(range(5)))
    assert admit(kv, sequence, 5)
    for start in (5, 6, 7):
        kv.extend(sequence, start, start + 1)
    sequence.token_ids += [5, 6, 7]
    kv.extend(sequence, 8, 9)
    found = [kv.find_prefix(make_sequence(1, [*range(length), 99])).num_tokens for length in (5, 6, 7, 8)]
    assert found == [5, 5, 5, 8], "5 and 6 left, unknown"


def test_without_prefix_caching_nothing_is_kept() -> None:
    kv = KVCacheManager(kv_config(), model_identity="m", enable_prefix_caching=False)
    sequence = make_sequence(0, 16)
    assert admit(kv, sequence, 16)
    kv.forget_content(sequence)
    kv.free(sequence)
    assert kv.pool.num_free == kv.pool.num_blocks
    assert kv.find_prefix(make_sequence(1, sequence.token_ids)).num_tokens == 0
