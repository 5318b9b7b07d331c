"""Whole texts into steps: the budget, the order, aborts, and that nobody is lost or answered twice."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.cache.kv_cache_manager import KVCacheManager
from quire.config import SchedulerConfig
from quire.core.embedding import EncodePlan, EncodeResult, PoolingParams, Vectors
from quire.core.kv_layout import make_kv_cache_config
from quire.core.sampling_params import SamplingParams
from quire.core.sequence import FinishReason, Sequence
from quire.scheduler.encode_scheduler import EncodeScheduler
from quire.scheduler.fair_policy import FairPolicy

VECTORS = Vectors(b"\0\0\0\0", 1)


def make_scheduler(**config: object) -> EncodeScheduler:
    layout = make_kv_cache_config([], block_size=16, dtype="float32", num_blocks=1)
    return EncodeScheduler(SchedulerConfig(**config), KVCacheManager(layout))


def text(seq_id: int, num_tokens: int, *, priority: int = 0, tenant: str = "") -> Sequence:
    return Sequence(
        seq_id=seq_id,
        request_id=f"r{seq_id}",
        token_ids=[seq_id] * num_tokens,
        num_prompt_tokens=num_tokens,
        sampling_params=SamplingParams(max_tokens=1),
        max_num_tokens=num_tokens,
        priority=priority,
        arrival_time=float(seq_id),
        tenant=tenant,
    )


def add(scheduler: EncodeScheduler, *lengths: int) -> list[Sequence]:
    sequences = [text(seq_id, length) for seq_id, length in enumerate(lengths)]
    for sequence in sequences:
        scheduler.add(sequence, PoolingParams())
    return sequences


def lengths_of(plan: EncodePlan | None) -> list[int]:
    return [] if plan is None else [len(row.token_ids) for row in plan.rows]


def answer(scheduler: EncodeScheduler, plan: EncodePlan) -> list[int]:
    return [
        sequence.seq_id for sequence, _ in scheduler.commit(plan, EncodeResult(plan.step_id, [VECTORS] * plan.num_rows))
    ]


def test_texts_are_packed_in_order_up_to_the_budget() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=10)
    add(scheduler, 4, 6, 3, 20, 1)
    # A text that fits is not taken past one that does not; the 20 come alone, above the budget.
    assert [lengths_of(scheduler.plan()) for _ in range(5)] == [[4, 6], [3], [20], [1], []]


def test_at_most_max_num_seqs_in_a_step() -> None:
    scheduler = make_scheduler(max_num_seqs=2)
    add(scheduler, 1, 1, 1)
    assert [len(lengths_of(scheduler.plan())) for _ in range(2)] == [2, 1]


def test_an_aborted_text_is_not_computed_or_not_answered() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=5)
    running, waiting, last = add(scheduler, 5, 5, 5)
    plan = scheduler.plan()
    assert plan is not None
    for sequence in (running, waiting, running):
        scheduler.abort(sequence)
    assert answer(scheduler, plan) == []
    assert (running.finish_reason, waiting.finish_reason) == (FinishReason.ABORT, FinishReason.ABORT)
    plan = scheduler.plan()
    assert plan is not None
    assert answer(scheduler, plan) == [last.seq_id]
    assert (len(scheduler.waiting), len(scheduler.running)) == (0, 0)


def test_an_error_ends_only_its_own_text() -> None:
    scheduler = make_scheduler()
    first, second = add(scheduler, 3, 4)
    plan = scheduler.plan()
    assert plan is not None
    texts = scheduler.commit(plan, EncodeResult(plan.step_id, ["not finite", VECTORS]))
    assert texts == [(first, "not finite"), (second, VECTORS)]
    assert (first.finish_reason, second.finish_reason) == (FinishReason.ERROR, FinishReason.STOP)
    assert scheduler.num_prompt_tokens == 7


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("fcfs", [0, 1, 2, 3]), ("priority", [3, 0, 1, 2]), ("fair", [0, 3, 1, 2])],
)
def test_the_scheduling_policy_orders_texts_too(policy: str, expected: list[int]) -> None:
    """Three texts of one tenant, then an urgent one of another."""
    scheduler = make_scheduler(policy=policy, max_num_batched_tokens=10)
    for seq_id in range(3):
        scheduler.add(text(seq_id, 10, tenant="a"), PoolingParams())
    scheduler.add(text(3, 10, tenant="b", priority=-1), PoolingParams())
    plans = [scheduler.plan() for _ in range(4)]
    assert [plan.rows[0].token_ids[0] for plan in plans if plan is not None] == expected


def add_for(scheduler: EncodeScheduler, tenant: str, *seq_ids: int) -> list[Sequence]:
    sequences = [text(seq_id, 10, tenant=tenant) for seq_id in seq_ids]
    for sequence in sequences:
        scheduler.add(sequence, PoolingParams())
    return sequences


def test_a_tenant_whose_text_was_computed_comes_after_one_who_had_none() -> None:
    scheduler = make_scheduler(policy="fair", max_num_batched_tokens=10)
    add_for(scheduler, "a", 0)
    add_for(scheduler, "b", 1, 2, 3)
    plan = scheduler.plan()
    assert plan is not None
    assert answer(scheduler, plan) == [0]
    add_for(scheduler, "a", 4)
    assert [waiting.seq_id for waiting in scheduler.waiting] == [1, 2, 4, 3]


def test_a_fair_share_counts_what_was_computed_and_no_more() -> None:
    scheduler = make_scheduler(policy="fair", max_num_batched_tokens=10)
    computed, dropped, waiting = add_for(scheduler, "a", 0, 1, 2)
    plan = scheduler.plan()
    assert plan is not None
    assert computed.first_scheduled_time is not None
    assert waiting.first_scheduled_time is None
    assert answer(scheduler, plan) == [0]
    scheduler.abort(dropped)
    # Tenant a was served 10 tokens and waits for 10 at 20: its next texts start at 20 and 30.
    add_for(scheduler, "a", 3, 4)
    add_for(scheduler, "b", 5, 6, 7)
    plans = [scheduler.plan() for _ in range(6)]
    assert [plan.rows[0].token_ids[0] for plan in plans if plan is not None] == [5, 6, 2, 3, 7, 4]
    for plan in plans:
        assert plan is not None
        answer(scheduler, plan)
    # Nobody is left: the next busy period starts even.
    add_for(scheduler, "a", 8)
    add_for(scheduler, "c", 9)
    assert [queued.seq_id for queued in scheduler.waiting] == [8, 9]
    policy = scheduler._policy
    assert isinstance(policy, FairPolicy)
    assert policy.num_tenants == 2


@given(
    lengths=st.lists(st.integers(1, 40), max_size=20),
    aborted=st.sets(st.integers(0, 19)),
    budget=st.integers(1, 50),
    max_num_seqs=st.integers(1, 5),
    depth=st.integers(1, 3),
)
def test_each_text_is_answered_once_whatever_happens(
    lengths: list[int], aborted: set[int], budget: int, max_num_seqs: int, depth: int
) -> None:
    scheduler = make_scheduler(max_num_batched_tokens=budget, max_num_seqs=max_num_seqs)
    sequences = add(scheduler, *lengths)
    in_flight: list[EncodePlan] = []
    answered: Counter[int] = Counter()
    for step in range(2 * len(lengths) + 2):
        while len(in_flight) < depth and (plan := scheduler.plan()) is not None:
            assert plan.num_tokens <= budget or plan.num_rows == 1
            assert plan.num_rows <= max_num_seqs
            in_flight.append(plan)
        if step == 1:
            for seq_id in aborted & set(range(len(lengths))):
                scheduler.abort(sequences[seq_id])
        if in_flight:
            answered.update(answer(scheduler, in_flight.pop(0)))
    assert set(answered.values()) <= {1}
    assert set(range(len(lengths))) - aborted <= set(answered)
    assert all(sequence.finished for sequence in sequences)
    assert (len(scheduler.waiting), len(scheduler.running)) == (0, 0)
    assert not scheduler._params, "nothing is left of a text"
