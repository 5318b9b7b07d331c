"""When sequences end, and what is said of it."""

from __future__ import annotations

import pytest
from tests.scheduler.harness import FULL, Harness, kv_config, make_sequence, sliding

from quire.core.sequence import FinishReason, Sequence
from quire.core.step import RowResult, StepResult, TokenLogprobs
from quire.core.structured_outputs import StructuredOutputs

EOS = 2


def feed(harness: Harness, token_ids: list[int], logprobs: list[TokenLogprobs] | None = None):
    """One step in which the only row returns these tokens."""
    plan = harness.scheduler.plan()
    assert plan is not None
    return harness.scheduler.commit(
        plan, StepResult(plan.step_id, [RowResult(plan.rows[0].seq_id, token_ids, logprobs)])
    )


def test_eos_has_no_stop_reason_and_a_stop_token_of_the_request_is_its_own() -> None:
    for token_id, stop_reason in ((EOS, None), (7, 7)):
        harness = Harness()
        sequence = make_sequence(0, 4, stop_token_ids=frozenset({EOS, 7}))
        sequence.sampling_params = type(sequence.sampling_params)(stop_token_ids=(7,))
        harness.add(sequence)
        feed(harness, [5])
        assert not sequence.finished
        feed(harness, [token_id])
        assert (sequence.finish_reason, sequence.stop_reason) == (FinishReason.STOP, stop_reason)
        assert sequence.token_ids[-2:] == [5, token_id]


def test_stop_tokens_count_only_after_min_tokens() -> None:
    harness = Harness()
    sequence = make_sequence(0, 4, num_output=9, stop_token_ids=frozenset({EOS}), min_tokens=2)
    harness.add(sequence)
    feed(harness, [EOS])
    feed(harness, [EOS])
    assert not sequence.finished
    feed(harness, [EOS])
    assert sequence.finish_reason is FinishReason.STOP


def test_a_grammar_that_is_complete_ends_before_min_tokens() -> None:
    harness = Harness()
    shape = StructuredOutputs(choice=("a",))
    sequence = make_sequence(0, 4, stop_token_ids=frozenset({EOS}), min_tokens=2, structured_outputs=shape)
    harness.add(sequence)
    feed(harness, [EOS])
    assert sequence.finish_reason is FinishReason.STOP


def test_length() -> None:
    harness = Harness()
    sequence = make_sequence(0, 4, num_output=1)
    harness.add(sequence)
    feed(harness, [5])
    assert (sequence.finish_reason, sequence.stop_reason) == (FinishReason.LENGTH, None)
    assert harness.kv.pool.num_held == 0


def test_tokens_after_the_end_are_cut_with_their_logprobs() -> None:
    harness = Harness()
    sequence = make_sequence(0, 4, num_output=9, stop_token_ids=frozenset({EOS}))
    harness.add(sequence)
    logprobs = [TokenLogprobs([token_id], [-1.0], [1]) for token_id in (5, EOS, 6)]
    (update,) = feed(harness, [5, EOS, 6], logprobs)
    assert (update.new_token_ids, update.logprobs) == ([5, EOS], logprobs[:2])
    assert harness.scheduler.num_generation_tokens == 2
    assert sequence.token_ids[-2:] == [5, EOS]


def test_stop_string_found_outside() -> None:
    harness = Harness()
    sequence = make_sequence(0, 4, num_output=9)
    harness.add(sequence)
    harness.step()
    harness.scheduler.finish(sequence, FinishReason.STOP, "\n\n")
    harness.scheduler.abort(sequence)
    assert (sequence.finish_reason, sequence.stop_reason) == (FinishReason.STOP, "\n\n")
    assert harness.kv.pool.num_held == 0


@pytest.mark.parametrize("ended", [False, True])
def test_what_is_dropped_keeps_no_blocks(ended: bool) -> None:
    harness = Harness()
    sequence = make_sequence(0, 10, num_output=1 if ended else 9, keep_blocks=True)
    harness.add(sequence)
    harness.step()
    assert harness.kv.pool.num_held == 3
    harness.scheduler.drop(sequence, FinishReason.ABORT)
    assert sequence.finish_reason is (FinishReason.LENGTH if ended else FinishReason.ABORT)
    assert harness.kv.pool.num_held == 0


def _cause(sequence: Sequence) -> str | None:
    return None if sequence.error is None else sequence.error.cause


@pytest.mark.parametrize("depth", [1, 2])
def test_row_error_ends_one_sequence_and_its_blocks_leave_the_prefix_cache(depth: int) -> None:
    harness = Harness(kv_config(specs=(FULL, sliding(20))), num_steps_in_flight=depth)
    bad, good = make_sequence(0, 16, num_output=8, keep_blocks=True), make_sequence(1, 16, num_output=8)
    harness.add(bad, good)
    harness.worker.failing.add(0)
    harness.run()
    assert (bad.finish_reason, _cause(bad)) == (FinishReason.ERROR, "not_finite")
    assert good.num_output_tokens == 8
    assert harness.kv.pool.num_held == 0, "a failed sequence keeps no blocks"
    for seq_id, num_cached_tokens in ((2, 0), (3, 12)):
        again = make_sequence(seq_id, bad.token_ids[:16], num_output=2)
        harness.add(again)
        harness.run()
        assert again.finish_reason is FinishReason.LENGTH
        assert again.num_cached_tokens == num_cached_tokens
    assert not harness.kv._hash_chains, "nothing is left of a sequence"


def test_error_of_an_aborted_sequence_still_clears_its_blocks() -> None:
    harness = Harness(num_steps_in_flight=2)
    bad = make_sequence(0, 16, num_output=8, keep_blocks=True)
    harness.add(bad)
    harness.worker.failing.add(0)
    harness.plan()
    harness.scheduler.abort(bad)
    assert harness.kv.pool.num_held > 0
    harness.commit()
    assert harness.kv.pool.num_held == 0, "nobody may fork it"
    again = make_sequence(2, bad.token_ids[:16], num_output=2)
    harness.add(again)
    harness.run()
    assert again.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("ended", [False, True])
def test_a_row_that_may_not_sample_any_token_leaves_its_blocks_in_the_prefix_cache(ended: bool) -> None:
    harness = Harness(num_steps_in_flight=2)
    shared = make_sequence(0, 16, num_output=1)
    harness.add(shared)
    harness.run()
    without = make_sequence(1, shared.token_ids[:16], num_output=8, keep_blocks=not ended)
    harness.add(without)
    harness.worker.without_tokens.add(1)
    harness.plan()
    if ended:
        harness.scheduler.finish(without, FinishReason.STOP)
    assert [update.sequence for update in harness.commit()] == ([] if ended else [without])
    assert (without.finish_reason, _cause(without)) == (
        (FinishReason.STOP, None) if ended else (FinishReason.ERROR, "nothing_left")
    )
    assert harness.kv.pool.num_held == 0
    again = make_sequence(2, shared.token_ids[:16], num_output=1)
    harness.add(again)
    harness.run()
    assert again.num_cached_tokens == without.num_cached_tokens > 0


def test_prompt_logprobs_pass_through_and_are_placed() -> None:
    harness = Harness(max_num_batched_tokens=4)
    sequence = make_sequence(0, 6, prompt_logprobs=1)
    harness.add(sequence)
    some = [TokenLogprobs([1], [-1.0], [1])]
    starts = []
    for _ in range(2):
        plan = harness.scheduler.plan()
        row = plan.rows[0]
        result = RowResult(0, [5] if row.samples else [], prompt_logprobs=some)
        (update,) = harness.scheduler.commit(plan, StepResult(plan.step_id, [result]))
        assert update.prompt_logprobs == some
        starts.append(update.start)
    assert starts == [0, 4]
