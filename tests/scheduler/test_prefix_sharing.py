"""The prefix cache as requests see it."""

from __future__ import annotations

import pytest
from tests.scheduler.harness import FULL, Harness, kv_config, make_sequence, rows, sliding

from quire.core.kv_layout import NULL_BLOCK


def prompt(num_tokens: int, *suffix: int) -> list[int]:
    return [*range(num_tokens), *suffix]


def test_requests_that_arrive_together_compute_a_shared_prefix_once() -> None:
    harness = Harness(max_num_seqs=16, max_num_batched_tokens=200)
    sequences = [make_sequence(i, prompt(32, 500 + i)) for i in range(16)]
    harness.add(*sequences)
    plan, _ = harness.step()
    assert plan.num_tokens == 33 + 15
    assert [s.num_cached_tokens for s in sequences] == [0] + [32] * 15
    assert harness.kv.num_prefix_query_tokens == 16 * 33
    assert harness.kv.num_prefix_hit_tokens == 15 * 32


def test_what_is_not_looked_up_is_not_counted() -> None:
    harness = Harness()
    first, wants_logprobs = make_sequence(0, prompt(16), num_output=8), make_sequence(1, prompt(16), prompt_logprobs=0)
    harness.add(first, wants_logprobs)
    harness.run()
    assert harness.kv.num_prefix_query_tokens == 16
    waits = make_sequence(2, [*prompt(16), *first.token_ids[16:22]])
    waits.index, waits.num_prompt_tokens = 1, 16
    harness.add(waits)
    harness.run()
    assert waits.num_cached_tokens == 16, "of the prompt; 4 of its output were found too"
    assert (harness.kv.num_prefix_query_tokens, harness.kv.num_prefix_hit_tokens) == (16, 0), (
        "a sample of a counted prompt"
    )


def test_a_hit_leaves_a_token_to_compute() -> None:
    harness = Harness()
    for seq_id in range(2):
        sequence = make_sequence(seq_id, prompt(16), num_output=1)
        harness.add(sequence)
        harness.run()
    assert sequence.num_cached_tokens == 12


def test_generated_blocks_are_found_whatever_the_depth() -> None:
    for depth in (1, 2, 3):
        harness = Harness(num_steps_in_flight=depth)
        first = make_sequence(0, prompt(10), num_output=15)
        harness.add(first)
        harness.run()
        second = make_sequence(1, [*first.token_ids, 7], num_output=1)
        harness.add(second)
        harness.run()
        assert second.num_cached_tokens == 24, "tokens 0 ... 23 were computed; token 24 only sampled"


def test_generated_blocks_are_found_while_their_sequence_runs() -> None:
    harness = Harness(num_steps_in_flight=2)
    first = make_sequence(0, prompt(10), num_output=30)
    harness.add(first)
    while first.num_known < 30:
        harness.step()
    second = make_sequence(1, [*first.token_ids[:26], 7], num_output=1)
    harness.add(second)
    harness.run()
    assert second.num_cached_tokens == 24


@pytest.mark.parametrize(
    ("fields", "num_cached_tokens"),
    [
        ({"cache_salt": "mine"}, 0),
        ({"cache_salt": ""}, 0),
        ({"cache_salt": None}, 16),
        ({"prompt_logprobs": 0}, 0),
    ],
)
def test_who_may_share(fields: dict, num_cached_tokens: int) -> None:
    harness = Harness()
    harness.add(make_sequence(0, prompt(16, 5), num_output=1))
    harness.run()
    sequence = make_sequence(1, prompt(16, 5), num_output=1, **fields)
    harness.add(sequence)
    harness.run()
    assert sequence.num_cached_tokens == num_cached_tokens


def test_equal_salts_share() -> None:
    harness = Harness()
    for seq_id in range(2):
        sequence = make_sequence(seq_id, prompt(16, 5), num_output=1, cache_salt="team")
        harness.add(sequence)
        harness.run()
    assert sequence.num_cached_tokens == 16


def test_reset_forgets_everything_unless_something_runs() -> None:
    harness = Harness()
    sequence = make_sequence(0, prompt(16, 5), num_output=2)
    harness.add(sequence)
    harness.step()
    assert not harness.kv.reset_prefix_cache()
    harness.run()
    assert harness.kv.pool.num_cached == 4
    assert harness.kv.reset_prefix_cache()
    assert harness.kv.pool.num_cached == 0
    again = make_sequence(1, prompt(16, 5), num_output=1)
    harness.add(again)
    harness.run()
    assert again.num_cached_tokens == 0


def test_a_prefix_outlives_what_followed_it() -> None:
    """Under pressure a sequence's last cached blocks are evicted before its first."""
    harness = Harness(kv_config(num_blocks=9))
    harness.add(make_sequence(0, prompt(28), num_output=1))
    harness.run()
    harness.add(make_sequence(1, 15, num_output=1))
    harness.run()
    again = make_sequence(2, prompt(28), num_output=1)
    harness.add(again)
    harness.run()
    assert again.num_cached_tokens == 16, "4 of 8 blocks were taken: 1 free, 3 evicted of 7"


def test_sliding_layers_hold_only_their_window_while_the_sequence_runs() -> None:
    harness = Harness(kv_config(num_blocks=200, specs=(FULL, sliding(9))))
    sequence = make_sequence(0, 40, num_output=40)
    harness.add(sequence)
    most = 0
    while not sequence.finished:
        harness.step()
        if not sequence.finished and sequence.num_known > 45:
            full, window = harness.kv.block_ids(sequence)
            assert NULL_BLOCK not in full
            most = max(most, sum(block != NULL_BLOCK for block in window))
    assert most == 3, "9 tokens of window and the newest touch at most 3 blocks of 4"


def test_a_prefix_hit_of_sliding_layers_needs_only_the_window() -> None:
    harness = Harness(kv_config(num_blocks=200, specs=(FULL, sliding(5))))
    harness.add(make_sequence(0, prompt(40, 5), num_output=1))
    harness.run()
    again = make_sequence(1, prompt(40, 6), num_output=1)
    harness.add(again)
    plan, _ = harness.step()
    assert rows(plan) == {1: (40, 41, True)}
    full, window = plan.new_rows[0].block_ids
    assert NULL_BLOCK not in full
    assert [block != NULL_BLOCK for block in window] == [False] * 9 + [True] * 2
