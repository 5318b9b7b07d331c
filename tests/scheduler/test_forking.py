"""Samples and beams: blocks shared, and copied by whoever comes to write."""

from __future__ import annotations

import pytest
from tests.scheduler.harness import FULL, VOCAB_SIZE, Harness, kv_config, make_sequence, rows, sliding
from tests.scheduler.simulated_worker import expected_output

from quire.core.sequence import SequenceStatus
from quire.errors import InvalidRequestError
from quire.scheduler.guarantees import MAX_PREEMPTIONS


def test_samples_of_a_running_parent_share_full_blocks_and_copy_the_last() -> None:
    harness = Harness()
    parent = make_sequence(0, 10, num_output=6)
    harness.add(parent)
    harness.step()
    children = [make_sequence(i, parent.token_ids[:10], num_output=6, seed=i) for i in (1, 2)]
    for child in children:
        harness.scheduler.fork(parent, child, 9)
        assert (child.num_planned, child.num_computed) == (9, 9)
    assert harness.kv.pool.num_held == 3, "nothing is copied before it is written"
    plan, _ = harness.step()
    assert rows(plan) == {0: (10, 11, True), 1: (9, 10, True), 2: (9, 10, True)}
    shared = harness.kv.block_ids(parent)[0]
    assert {source for source, _ in plan.block_copies} == {shared[2]}
    assert len(plan.block_copies) == 2
    for child in children:
        assert harness.kv.block_ids(child)[0][:2] == shared[:2]
    harness.run()
    for seed, sequence in enumerate([parent, *children]):
        assert sequence.token_ids == expected_output(parent.token_ids[:10], 16, seed, VOCAB_SIZE)


def test_the_last_holder_writes_without_a_copy() -> None:
    """A beam's round: the parent is finished and released, two hypotheses go on; one copy is enough."""
    harness = Harness()
    parent = make_sequence(0, 10, num_output=1, keep_blocks=True)
    harness.add(parent)
    harness.run()
    for i in (1, 2):
        harness.scheduler.fork(parent, make_sequence(i, [*parent.token_ids[:10], i], num_output=3), 10)
    harness.scheduler.release(parent)
    plan, _ = harness.step()
    assert len(plan.block_copies) == 1
    harness.run()
    assert harness.kv.pool.num_held == 0


def test_a_block_that_others_can_find_is_copied_even_by_its_last_holder() -> None:
    harness = Harness()
    parent = make_sequence(0, 8, num_output=1, keep_blocks=True)
    harness.add(parent)
    harness.run()
    child = make_sequence(1, [*parent.token_ids[:6], 5], num_output=3)
    harness.scheduler.fork(parent, child, 6)
    harness.scheduler.release(parent)
    plan, _ = harness.step()
    assert len(plan.block_copies) == 1
    reader = make_sequence(2, [*parent.token_ids[:8], 7], num_output=2)
    harness.add(reader)
    harness.run()
    assert reader.num_cached_tokens == 8


def test_at_a_block_border_nothing_is_copied() -> None:
    harness = Harness()
    parent = make_sequence(0, 9, num_output=6)
    harness.add(parent)
    harness.step()
    harness.scheduler.fork(parent, make_sequence(1, parent.token_ids[:9], num_output=6), 8)
    assert harness.step()[0].block_copies == []


def test_a_full_batch_makes_the_child_wait_and_find_the_prefix_in_the_cache() -> None:
    harness = Harness(max_num_seqs=1)
    parent = make_sequence(0, 10, num_output=3)
    harness.add(parent)
    harness.step()
    child = make_sequence(1, parent.token_ids[:10], num_output=3)
    harness.scheduler.fork(parent, child, 9)
    assert child.status is SequenceStatus.WAITING
    harness.run()
    assert child.num_cached_tokens == 8
    assert child.num_output_tokens == 3


def test_a_fork_of_a_preempted_parent_waits() -> None:
    harness = Harness(kv_config(num_blocks=9))
    old, parent = make_sequence(0, 12, num_output=12), make_sequence(1, 12, num_output=12)
    harness.add(old, parent)
    while not parent.num_preemptions:
        harness.step()
    child = make_sequence(2, parent.token_ids[:12], num_output=2)
    harness.scheduler.fork(parent, child, 11)
    assert child.status is SequenceStatus.WAITING
    harness.run()
    assert child.num_output_tokens == 2


def test_a_fork_beyond_what_its_parent_has_planned_waits() -> None:
    harness = Harness(max_num_batched_tokens=5)
    parent = make_sequence(0, 10)
    harness.add(parent)
    harness.step()
    child = make_sequence(1, parent.token_ids[:10], num_output=2)
    harness.scheduler.fork(parent, child, 7)
    assert child.status is SequenceStatus.WAITING
    harness.run()
    assert child.token_ids == expected_output(parent.token_ids[:10], 12, 0, VOCAB_SIZE)


def test_a_child_that_needs_what_the_window_left_behind_waits() -> None:
    harness = Harness(kv_config(specs=(FULL, sliding(4))))
    parent = make_sequence(0, 10, num_output=20)
    harness.add(parent)
    while parent.num_known < 24:
        harness.step()
    child = make_sequence(1, parent.token_ids[:10], num_output=3)
    harness.scheduler.fork(parent, child, 9)
    assert child.status is SequenceStatus.WAITING
    harness.run()
    assert child.token_ids == expected_output(parent.token_ids[:10], 13, 0, VOCAB_SIZE)


def test_a_fork_without_room_for_its_copy_goes_back_to_waiting() -> None:
    harness = Harness(kv_config(num_blocks=4))
    parent = make_sequence(0, 10, num_output=2, keep_blocks=True)
    harness.add(parent)
    harness.step()
    child = make_sequence(1, parent.token_ids[:10], num_output=2)
    harness.scheduler.fork(parent, child, 9)
    harness.step()
    assert child.status is SequenceStatus.WAITING
    harness.run()
    assert child.num_output_tokens == 2


def test_grandchildren_forked_before_anyone_ran() -> None:
    harness = Harness()
    parent = make_sequence(0, 10, num_output=6)
    harness.add(parent)
    harness.step()
    child = make_sequence(1, parent.token_ids[:10], num_output=6, seed=1)
    grandchild = make_sequence(2, parent.token_ids[:10], num_output=6, seed=2)
    harness.scheduler.fork(parent, child, 9)
    harness.scheduler.fork(child, grandchild, 9)
    harness.scheduler.abort(child)
    harness.run()
    assert grandchild.token_ids == expected_output(parent.token_ids[:10], 16, 2, VOCAB_SIZE)


def test_a_child_that_is_forked_itself_keeps_its_table() -> None:
    """The worker has it: only newcomers copy."""
    harness = Harness()
    parent = make_sequence(0, 10, num_output=8)
    harness.add(parent)
    harness.step()
    child = make_sequence(1, parent.token_ids[:10], num_output=8, seed=1)
    harness.scheduler.fork(parent, child, 9)
    harness.step()
    before = harness.kv.block_ids(child)
    grandchild = make_sequence(2, child.token_ids[:11], num_output=7, seed=1)
    harness.scheduler.fork(child, grandchild, 10)
    harness.step()
    assert harness.kv.block_ids(child) == before
    harness.run()
    assert grandchild.token_ids == child.token_ids


def test_forks_wait_for_the_budget_and_the_first_in_order_for_nobody() -> None:
    harness = Harness(max_num_batched_tokens=2)
    parent = make_sequence(0, 20, arrival_time=0)
    harness.add(parent)
    harness.step()
    for i in (1, 2, 3):
        harness.scheduler.fork(parent, make_sequence(i, [*parent.token_ids[:2], i], arrival_time=1), 2)
    assert len(harness.scheduler.running) == 4
    assert rows(harness.step()[0]) == {0: (2, 3, False), 1: (2, 3, True)}
    harness.run()


def test_a_fork_takes_no_block_that_a_protected_sequence_will_need() -> None:
    """Each needs 4 blocks in the end, and there are 11."""
    harness = Harness(kv_config(num_blocks=12))
    parent, protected = (make_sequence(i, 10, num_output=6, arrival_time=i) for i in (0, 1))
    protected.num_preemptions = MAX_PREEMPTIONS
    harness.add(parent, protected)
    harness.step()
    assert len(harness.scheduler.running) == 2
    child = make_sequence(2, parent.token_ids[:10], num_output=6, arrival_time=0)
    harness.scheduler.fork(parent, child, 9)
    assert child.status is SequenceStatus.WAITING
    harness.run()
    assert harness.scheduler.num_preemptions == 0


def test_a_fork_that_could_never_finish_is_refused() -> None:
    harness = Harness(kv_config(num_blocks=9))
    parent = make_sequence(0, 10)
    harness.add(parent)
    harness.step()
    with pytest.raises(InvalidRequestError, match="KV blocks"):
        harness.scheduler.fork(parent, make_sequence(1, parent.token_ids[:10], num_output=30), 9)


@pytest.mark.parametrize("policy", ["priority", "fair"])
def test_a_fork_does_not_overtake_who_waits_and_comes_before_it(policy: str) -> None:
    harness = Harness(policy=policy, max_num_seqs=2)
    parent = make_sequence(0, 8, num_output=8, priority=5, tenant="a")
    harness.add(parent)
    harness.step()
    # A tenant that was charged for its prompt stands behind one that comes.
    urgent = make_sequence(1, 4, priority=-5, tenant="b")
    harness.add(urgent, make_sequence(3, 4, priority=9, tenant="a"))
    harness.scheduler.fork(parent, child := make_sequence(2, [*parent.token_ids[:8], 7], priority=5, tenant="a"), 8)
    harness.step()
    assert urgent.status is SequenceStatus.RUNNING
    assert child.status is SequenceStatus.WAITING
    harness.run()
    assert child.finished


def test_in_the_order_of_arrival_a_fork_comes_before_who_waits() -> None:
    harness = Harness(max_num_seqs=2)
    parent = make_sequence(0, 8, num_output=8, arrival_time=0.0)
    harness.add(parent)
    harness.step()
    harness.add(later := make_sequence(1, 4, arrival_time=1.0))
    harness.scheduler.fork(parent, child := make_sequence(2, [*parent.token_ids[:8], 7], arrival_time=0.0), 8)
    harness.step()
    assert (child.status, later.status) == (SequenceStatus.RUNNING, SequenceStatus.WAITING)
