"""Which ranges run in a step."""

from __future__ import annotations

import pytest
from tests.scheduler.harness import Harness, kv_config, make_sequence, rows, sliding

from quire.core.sequence import FinishReason
from quire.errors import InvalidRequestError


def test_long_prompt_is_computed_in_chunks_within_the_budget() -> None:
    harness = Harness(max_num_batched_tokens=8)
    harness.add(make_sequence(0, 20, num_output=2))
    ranges = [rows(plan)[0] for plan in harness.run()]
    assert ranges == [(0, 8, False), (8, 16, False), (16, 20, True), (20, 21, True)]


def test_decoding_sequences_run_in_every_step_while_a_long_prompt_is_computed() -> None:
    harness = Harness(max_num_batched_tokens=8)
    decoding = [make_sequence(i, 2, num_output=30) for i in range(3)]
    harness.add(*decoding)
    harness.step()
    harness.add(make_sequence(9, 40))
    while 9 not in (planned := rows(harness.step()[0])) or not planned[9][2]:
        assert {0, 1, 2} <= set(planned)
        assert planned[9][1] - planned[9][0] == 5


def test_a_more_urgent_long_prompt_leaves_a_token_for_everyone_behind_it() -> None:
    harness = Harness(max_num_batched_tokens=8, policy="priority")
    harness.add(*[make_sequence(i, 2, num_output=30, priority=1) for i in range(3)])
    harness.step()
    harness.add(make_sequence(9, 40, priority=0))
    harness.step()
    for _ in range(4):
        assert set(rows(harness.step()[0])) == {0, 1, 2, 9}


def test_without_chunks_the_first_prompt_may_exceed_the_budget() -> None:
    harness = Harness(max_num_batched_tokens=8, enable_chunked_prefill=False)
    harness.add(make_sequence(0, 20), make_sequence(1, 4), make_sequence(2, 30), make_sequence(3, 2))
    assert rows(harness.step()[0]) == {0: (0, 20, True)}
    assert rows(harness.step()[0]) == {0: (20, 21, True), 1: (0, 4, True)}, "30 tokens wait for a step of their own"
    assert rows(harness.step()[0]) == {0: (21, 22, True), 1: (4, 5, True), 2: (0, 30, True)}


def test_max_num_seqs_bounds_the_running() -> None:
    harness = Harness(max_num_seqs=2)
    harness.add(*[make_sequence(i, 4, num_output=3) for i in range(5)])
    harness.step()
    assert (len(harness.scheduler.running), len(harness.scheduler.waiting)) == (2, 3)
    assert all(plan.num_rows <= 2 for plan in harness.run())


@pytest.mark.parametrize(("policy", "order"), [("fcfs", [3, 0, 2, 1]), ("priority", [3, 2, 1, 0])])
def test_waiting_order(policy: str, order: list[int]) -> None:
    harness = Harness(max_num_seqs=1, policy=policy)
    places = enumerate([(2, 1), (1, 3), (0, 2), (0, 0)])
    harness.add(*[make_sequence(i, 4, num_output=1, priority=p, arrival_time=t) for i, (p, t) in places])
    assert [plan.rows[0].seq_id for plan in harness.run()] == order


def test_two_steps_in_flight_plan_a_token_whose_value_only_the_worker_knows() -> None:
    harness = Harness(num_steps_in_flight=2)
    sequence = make_sequence(0, 4, num_output=3)
    harness.add(sequence)
    assert rows(harness.plan()) == {0: (0, 4, True)}
    assert rows(harness.plan()) == {0: (4, 5, True)}
    assert rows(harness.plan()) == {0: (5, 6, True)}
    assert harness.plan() is None, "the last token is in flight"
    harness.run()
    assert sequence.finish_reason is FinishReason.LENGTH
    assert sequence.num_output_tokens == 3


def test_result_of_a_sequence_that_ended_meanwhile_is_ignored() -> None:
    harness = Harness(num_steps_in_flight=2)
    stopped, aborted = make_sequence(0, 4, num_output=9), make_sequence(1, 4, num_output=9)
    harness.add(stopped, aborted)
    harness.plan()
    harness.plan()
    stopped.stop_token_ids = frozenset(range(1000))
    harness.scheduler.abort(aborted)
    assert [update.sequence for update in harness.commit()] == [stopped]
    assert stopped.finished
    assert harness.commit() == []
    assert (stopped.num_output_tokens, aborted.num_output_tokens) == (1, 0)
    assert harness.kv.pool.num_held == 0


def test_a_new_row_has_what_the_worker_samples_by_and_stays_as_it_was() -> None:
    """Here one that goes on: 4 of its 6 tokens are prompt."""
    harness = Harness()
    sequence = make_sequence(0, 6, num_output=8, seed=7, stop_token_ids=frozenset({2, 5}), min_tokens=8)
    sequence.num_prompt_tokens = 4
    known = list(sequence.token_ids)
    harness.add(sequence)
    plan, _ = harness.step()
    (row,) = plan.new_rows
    blocks = harness.kv.block_ids(sequence)
    harness.run()
    assert (row.token_ids, row.num_prompt_tokens, row.block_ids) == (known, 4, blocks)
    assert (row.sampling_params, row.seed) == (sequence.sampling_params, 7)
    assert sorted(row.stop_token_ids) == [2, 5]


def test_released_rows_are_named_once_and_outlast_an_idle_time() -> None:
    harness = Harness()
    first = make_sequence(0, 4)
    harness.add(first)
    harness.step()
    harness.scheduler.abort(first)
    assert harness.plan() is None
    harness.add(make_sequence(1, 4, num_output=2))
    assert harness.step()[0].released_seq_ids == [0]
    assert harness.step()[0].released_seq_ids == []


def test_aborted_before_it_ran_needs_no_release() -> None:
    harness = Harness()
    never = make_sequence(0, 4)
    harness.add(never, make_sequence(1, 4))
    harness.scheduler.abort(never)
    harness.scheduler.abort(never)
    assert harness.step()[0].released_seq_ids == []


@pytest.mark.parametrize(
    ("num_prompt_tokens", "num_output", "words"),
    [
        (0, 4, "prompt of 0 tokens"),
        (4, 0, "up to 0 tokens of output"),
        (8000, 193, "max_model_len (8192)"),
        (30, 4, "needs 9 KV blocks of 4 tokens, and there are 8"),
    ],
)
def test_what_can_never_finish_is_refused_with_the_numbers(num_prompt_tokens: int, num_output: int, words: str) -> None:
    harness = Harness(kv_config(num_blocks=9))
    with pytest.raises(InvalidRequestError, match=r"tokens") as raised:
        harness.add(make_sequence(0, num_prompt_tokens, num_output))
    assert words in str(raised.value)
    assert not harness.scheduler.has_unfinished


def test_the_largest_that_fits_runs_alone() -> None:
    harness = Harness(kv_config(num_blocks=9))
    sequence = make_sequence(0, 29, num_output=4)
    harness.add(sequence)
    harness.run()
    assert sequence.num_output_tokens == 4


def test_sliding_layers_let_a_longer_sequence_fit_in_smaller_chunks() -> None:
    """100 tokens never fit at once in 8 blocks of 4, but a window of 8 needs 3 or 4 blocks at a time."""
    harness = Harness(kv_config(num_blocks=9, specs=(sliding(8),)))
    sequence = make_sequence(0, 100, num_output=20)
    harness.add(sequence)
    assert len(harness.run()) < 60
    assert sequence.num_output_tokens == 20
