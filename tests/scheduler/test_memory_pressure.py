"""What gives way when blocks run out, and that everything finishes all the same."""

from __future__ import annotations

import pytest
from tests.scheduler.harness import FULL, VOCAB_SIZE, Harness, kv_config, make_sequence, sliding
from tests.scheduler.simulated_worker import expected_output

from quire.core.sequence import FinishReason, SequenceStatus
from quire.scheduler.guarantees import MAX_PREEMPTIONS


def test_the_newest_is_preempted_and_resumes_with_every_token_it_had() -> None:
    harness = Harness(kv_config(num_blocks=9))
    old, new = make_sequence(0, 12, num_output=12), make_sequence(1, 12, num_output=12)
    harness.add(old, new)
    while not new.num_preemptions:
        harness.step()
    assert (old.status, new.status) == (SequenceStatus.RUNNING, SequenceStatus.WAITING)
    assert new.num_output_tokens > 0
    harness.run()
    assert (old.num_preemptions, new.num_preemptions) == (0, 1)
    assert new.num_cached_tokens == 0, "what it finds of itself is none of its prompt's hits"
    for sequence in (old, new):
        assert sequence.token_ids == expected_output(sequence.token_ids[:12], 24, 0, VOCAB_SIZE)


def test_the_least_urgent_is_preempted_under_the_priority_policy() -> None:
    harness = Harness(kv_config(num_blocks=9), policy="priority")
    urgent, patient = make_sequence(1, 12, num_output=12), make_sequence(0, 12, num_output=12, priority=5)
    harness.add(patient, urgent)
    harness.run()
    assert urgent.num_preemptions == 0
    assert patient.num_preemptions == 1


def test_preempted_with_a_sample_in_flight_keeps_the_token_and_waits_for_it() -> None:
    harness = Harness(kv_config(num_blocks=9), num_steps_in_flight=2)
    old, new = make_sequence(0, 12, num_output=12), make_sequence(1, 12, num_output=12)
    harness.add(old, new)
    while not new.num_preemptions:
        harness.plan() if len(harness.in_flight) < 2 else harness.commit()
    assert new.num_steps_in_flight == 1
    num_known = new.num_known
    harness.scheduler.abort(old)
    harness.commit()
    assert new.num_known == num_known + 1
    harness.run()
    assert new.token_ids == expected_output(new.token_ids[:12], 24, 0, VOCAB_SIZE)


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("specs", [(FULL,), (FULL, sliding(20))])
def test_fifty_long_requests_in_a_full_cache(policy: str, depth: int, specs: tuple) -> None:
    """All finish, preemptions are bounded, and the first in order advances in every step it can."""
    harness = Harness(
        kv_config(num_blocks=60 * len(specs), specs=specs),
        num_steps_in_flight=depth,
        policy=policy,
        max_num_seqs=50,
        max_num_batched_tokens=128,
    )
    sequences = [make_sequence(i, 20 + i, num_output=100, arrival_time=i, priority=i % 3) for i in range(50)]
    harness.add(*sequences)
    while harness.scheduler.has_unfinished or harness.in_flight:
        unfinished = [s for s in sequences if not s.finished]
        place = (lambda s: (s.priority, s.seq_id)) if policy == "priority" else (lambda s: s.seq_id)
        first = min(unfinished, key=place, default=None)
        before = None if first is None else first.num_computed
        harness.step()
        if first is not None and depth == 1:
            assert first.finished or first.num_computed > before
    assert harness.scheduler.num_preemptions > 10, "no pressure, no test"
    assert max(s.num_preemptions for s in sequences) <= MAX_PREEMPTIONS
    for s in sequences:
        assert s.token_ids == expected_output(s.token_ids[: s.num_prompt_tokens], s.max_num_tokens, 0, VOCAB_SIZE)
    assert harness.kv.pool.num_held == 0


def test_a_protected_sequence_waits_until_it_can_stay() -> None:
    """Alone each needs 6 of 8 blocks in the end; both would fit at first."""
    harness = Harness(kv_config(num_blocks=9))
    old, protected = make_sequence(0, 12, num_output=12), make_sequence(1, 12, num_output=12)
    protected.num_preemptions = MAX_PREEMPTIONS
    harness.add(old, protected)
    while not old.finished:
        harness.step()
        assert protected.status is SequenceStatus.WAITING
    harness.run()
    assert protected.num_output_tokens == 12
    assert harness.scheduler.num_preemptions == 0


def test_newcomers_leave_a_block_for_each_that_runs() -> None:
    """8 blocks: two sequences hold 3 each; a third of 2 blocks would leave none to grow into."""
    harness = Harness(kv_config(num_blocks=9))
    harness.add(*[make_sequence(i, 10, num_output=3) for i in range(2)], make_sequence(2, 8, num_output=2))
    harness.step()
    assert (len(harness.scheduler.running), len(harness.scheduler.waiting)) == (2, 1)
    harness.run()
    assert harness.scheduler.num_preemptions == 0


def test_blocks_kept_for_a_fork_are_reclaimed_before_anyone_starves() -> None:
    harness = Harness(kv_config(num_blocks=9))
    kept = make_sequence(0, 20, num_output=1, keep_blocks=True)
    harness.add(kept)
    harness.run()
    assert harness.kv.pool.num_held == 5
    large = make_sequence(1, 24, num_output=8)
    harness.add(large)
    harness.run()
    assert large.finish_reason is FinishReason.LENGTH
    child = make_sequence(2, [*kept.token_ids[:20], 5], num_output=2)
    harness.scheduler.fork(kept, child, 20)
    assert child.status is SequenceStatus.WAITING
    harness.scheduler.release(kept)
    harness.run()
    assert child.finish_reason is FinishReason.LENGTH
    assert harness.kv.pool.num_held == 0


def test_blocks_kept_for_a_fork_outlast_a_preemption() -> None:
    """Somebody running gives way before they do: a fork is about to come for them."""
    harness = Harness(kv_config(num_blocks=9))
    kept = make_sequence(0, 8, num_output=1, keep_blocks=True)
    old, new = (make_sequence(i, 8, num_output=16) for i in (1, 2))
    harness.add(kept)
    harness.run()
    harness.add(old, new)
    while not new.num_preemptions:
        harness.step()
    child = make_sequence(3, kept.token_ids[:8], num_output=2, arrival_time=-1)
    harness.scheduler.fork(kept, child, 7)
    assert child.status is SequenceStatus.RUNNING
    harness.scheduler.release(kept)
    harness.run()
    assert child.token_ids == expected_output(kept.token_ids[:8], 10, 0, VOCAB_SIZE)


def test_a_newcomer_waits_for_those_that_run_and_takes_no_kept_blocks() -> None:
    """8 blocks: 2 are kept, 3 in use; the newcomer wants 3 and leaves one for who runs."""
    harness = Harness(kv_config(num_blocks=9))
    kept = make_sequence(0, 8, num_output=1, keep_blocks=True)
    harness.add(kept)
    harness.run()
    harness.add(make_sequence(1, 9, num_output=3), newcomer := make_sequence(2, 12, num_output=2))
    harness.step()
    assert newcomer.status is SequenceStatus.WAITING
    assert harness.kv.tables(kept) is not None
    harness.run()
    assert newcomer.num_output_tokens == 2
    harness.scheduler.release(kept)
    assert harness.kv.pool.num_held == 0


def test_kept_blocks_go_before_a_protected_sequence() -> None:
    """Two that need 4 of 8 blocks each in the end, and 2 that are kept, which no guarantee counts."""
    harness = Harness(kv_config(num_blocks=9))
    kept = make_sequence(0, 8, num_output=1, keep_blocks=True)
    harness.add(kept)
    harness.run()
    old, protected = (make_sequence(i, 8, num_output=8) for i in (1, 2))
    protected.num_preemptions = MAX_PREEMPTIONS
    harness.add(old, protected)
    harness.step()
    assert len(harness.scheduler.running) == 2
    harness.run()
    assert harness.scheduler.num_preemptions == 0


def test_of_those_that_keep_blocks_the_last_to_finish_gives_way_first() -> None:
    harness = Harness(kv_config(num_blocks=9))
    kept = [make_sequence(i, 8, num_output=1, keep_blocks=True) for i in (0, 1)]
    harness.add(*kept)
    harness.run()
    harness.add(make_sequence(2, 22, num_output=2))
    harness.run()
    assert [harness.kv.tables(sequence) is not None for sequence in kept] == [True, False]
    for sequence in kept:
        harness.scheduler.release(sequence)
    assert harness.kv.pool.num_held == 0
