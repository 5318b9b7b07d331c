"""How many blocks a protected sequence keeps for itself, to the block."""

from __future__ import annotations

import pytest
from tests.scheduler.harness import FULL, kv_config, make_sequence, sliding

from quire.cache.kv_cache_manager import KVCacheManager
from quire.config import SchedulerConfig
from quire.core.kv_layout import KVSpec
from quire.errors import InvalidRequestError
from quire.scheduler.guarantees import MAX_PREEMPTIONS, Guarantees, is_protected
from quire.scheduler.policies import POLICIES

NUM_TOKENS = 29
"""Of which 28 are written, to 7 blocks of 4."""


def guarantees(num_blocks: int, spec: KVSpec, **config: int) -> Guarantees:
    kv = KVCacheManager(kv_config(num_blocks + 1, specs=(spec,)))  # one is the null block
    return Guarantees(SchedulerConfig(max_num_batched_tokens=2, **config), kv, POLICIES["fcfs"]())


def test_protected_is_who_was_preempted_so_often() -> None:
    sequence = make_sequence(0, 4)
    sequence.num_preemptions = MAX_PREEMPTIONS - 1
    assert not is_protected(sequence)
    sequence.num_preemptions = MAX_PREEMPTIONS
    assert is_protected(sequence)


CASES = [
    (FULL, True, 7),
    (FULL, False, 7),
    # The window of 9 but for its last, a chunk of 2, and 3 that a block may begin before: 13 tokens.
    (sliding(9), True, 4),
    (sliding(9), False, 7),
]


@pytest.mark.parametrize(("spec", "chunked", "blocks_each"), CASES)
def test_a_newcomer_may_take_what_a_protected_one_will_not_need(spec: KVSpec, chunked: bool, blocks_each: int) -> None:
    first, second = (make_sequence(i, 13, num_output=NUM_TOKENS - 13, arrival_time=i) for i in range(2))
    second.num_preemptions = MAX_PREEMPTIONS
    exact, short = (guarantees(2 * blocks_each - lacking, spec, enable_chunked_prefill=chunked) for lacking in (0, 1))
    assert exact.can_join([second], first)
    assert exact.can_join([first], second)
    assert not short.can_join([second], first)
    assert not short.can_join([first], second)


def test_a_protected_one_alone_makes_do_with_smaller_chunks() -> None:
    sequence = make_sequence(0, 13, num_output=NUM_TOKENS - 13)
    sequence.num_preemptions = MAX_PREEMPTIONS
    assert guarantees(3, sliding(9)).can_join([], sequence)


def test_who_comes_after_a_protected_one_gives_way_and_does_not_count() -> None:
    before, after = (make_sequence(i, 13, num_output=NUM_TOKENS - 13, arrival_time=i) for i in range(2))
    tight = guarantees(8, FULL)
    assert tight.can_join([before], after)
    before.num_preemptions = MAX_PREEMPTIONS
    assert tight.can_join([before], after)
    after.num_preemptions = MAX_PREEMPTIONS
    assert not tight.can_join([before], after)


@pytest.mark.parametrize(
    ("spec", "chunked", "needed"), [(FULL, True, 7), (sliding(9), True, 3), (sliding(9), False, 7)]
)
def test_what_fits_a_token_at_a_time_is_taken_and_no_more(spec: KVSpec, chunked: bool, needed: int) -> None:
    guarantees(needed, spec, enable_chunked_prefill=chunked).check_fits(13, NUM_TOKENS)
    with pytest.raises(InvalidRequestError, match=f"needs {needed} KV blocks of 4 tokens, and there are {needed - 1}:"):
        guarantees(needed - 1, spec, enable_chunked_prefill=chunked).check_fits(13, NUM_TOKENS)


@pytest.mark.parametrize(("num_prompt_tokens", "max_num_tokens"), [(0, 5), (5, 5), (60, 65)])
def test_what_has_no_prompt_or_output_or_is_too_long_is_refused(num_prompt_tokens: int, max_num_tokens: int) -> None:
    many = guarantees(100, FULL, max_model_len=64)
    with pytest.raises(InvalidRequestError, match="each needs at least 1, and together at most max_model_len"):
        many.check_fits(num_prompt_tokens, max_num_tokens)
    many.check_fits(1, 2)
    many.check_fits(63, 64)
