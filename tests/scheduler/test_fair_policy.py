"""Shares between tenants under the fair policy."""

from __future__ import annotations

from tests.scheduler.harness import Harness, kv_config, make_sequence

from quire.core.sequence import Sequence
from quire.scheduler.fair_policy import MAX_IDLE_TENANTS, FairPolicy


def finish_order(harness: Harness, sequences: list[Sequence]) -> list[int]:
    """seq_ids in the order in which they finish."""
    order: list[int] = []
    while harness.scheduler.has_unfinished:
        harness.step()
        order += [s.seq_id for s in sequences if s.finished and s.seq_id not in order]
    return order


def starts(policy: str, **fields: int) -> dict[str, int]:
    """The step in which each tenant's last sequence was started: 30 of the greedy one came before 3 of the modest."""
    harness = Harness(kv_config(num_blocks=400), policy=policy, max_num_seqs=2, **fields)
    greedy = [make_sequence(i, 40, tenant="greedy", arrival_time=i) for i in range(30)]
    modest = [make_sequence(i, 4, tenant="modest", arrival_time=i) for i in range(30, 33)]
    harness.add(*greedy, *modest)
    first: dict[int, int] = {}
    for number, plan in enumerate(harness.run()):
        for row in plan.rows:
            first.setdefault(row.seq_id, number)
    return {"greedy": max(first[s.seq_id] for s in greedy), "modest": max(first[s.seq_id] for s in modest)}


def test_a_greedy_tenant_does_not_starve_a_modest_one() -> None:
    served, fair = starts("fcfs"), starts("fair")
    assert served["modest"] >= served["greedy"]
    assert fair["modest"] < fair["greedy"] / 4


def test_equal_tenants_alternate() -> None:
    harness = Harness(kv_config(num_blocks=400), policy="fair", max_num_seqs=1)
    sequences = [make_sequence(i, 8, tenant="ab"[i >= 4], arrival_time=i) for i in range(8)]
    harness.add(*sequences)
    assert finish_order(harness, sequences) == [0, 4, 1, 5, 2, 6, 3, 7]


def test_shares_are_of_tokens_not_of_requests() -> None:
    """Requests of 40 + 2x4 tokens against requests of 4 + 2x4: four of the small ones weigh as much as one large one."""
    harness = Harness(kv_config(num_blocks=400), policy="fair", max_num_seqs=1)
    large = [make_sequence(i, 40, tenant="large", arrival_time=i) for i in range(3)]
    small = [make_sequence(i, 4, tenant="small", arrival_time=i) for i in range(3, 15)]
    harness.add(*large, *small)
    order = finish_order(harness, large + small)
    assert order == [0, 3, 4, 5, 6, 1, 7, 8, 9, 10, 2, 11, 12, 13, 14]


def test_within_a_tenant_first_come_first_served_whatever_is_given_back() -> None:
    """The first ends early, which lowers the tenant's tag; who comes then still stands behind who came before."""
    harness = Harness(kv_config(num_blocks=400), policy="fair", max_num_seqs=1)
    early = make_sequence(0, 4, num_output=200, stop_token_ids=frozenset(range(1000)), arrival_time=0)
    queued = [make_sequence(i, 4, arrival_time=i) for i in (1, 2)]
    harness.add(early, *queued)
    while not early.finished:
        harness.step()
    assert early.num_output_tokens == 1
    late = make_sequence(3, 4, arrival_time=3)
    harness.add(late)
    assert finish_order(harness, [*queued, late]) == [1, 2, 3]


def test_what_was_not_used_is_given_back() -> None:
    """Tenant a asked for much and used little: its next request is not behind all of b's."""
    harness = Harness(kv_config(num_blocks=400), policy="fair", max_num_seqs=1)
    asked = make_sequence(0, 4, num_output=200, tenant="a", stop_token_ids=frozenset(range(1000)), arrival_time=0)
    others = [make_sequence(i, 4, tenant="b", arrival_time=i) for i in range(1, 9)]
    harness.add(asked, *others)
    while not asked.finished:
        harness.step()
    again = make_sequence(9, 4, tenant="a", arrival_time=9)
    harness.add(again)
    assert finish_order(harness, [*others, again]).index(9) < 2


def test_an_aborted_request_that_never_ran_costs_nothing() -> None:
    policy = FairPolicy()
    running, waiting = make_sequence(0, 4, tenant="a"), make_sequence(1, 4, num_output=100, tenant="b")
    policy.arrived(running, 0)
    policy.started(running)
    policy.arrived(waiting, 0)
    before = policy.place(waiting)[0]
    policy.finished(waiting)
    again = make_sequence(2, 4, tenant="b")
    policy.arrived(again, 0)
    assert policy.place(again)[0] == before


def test_being_idle_saves_nothing_up() -> None:
    """A tenant that comes late starts at the virtual time, not where the others began."""
    harness = Harness(kv_config(num_blocks=400), policy="fair", max_num_seqs=1)
    early = [make_sequence(i, 8, tenant="early", arrival_time=i) for i in range(8)]
    harness.add(*early)
    while not early[3].finished:
        harness.step()
    late = [make_sequence(i, 8, tenant="late", arrival_time=i) for i in range(10, 14)]
    harness.add(*late)
    order = finish_order(harness, early + late)
    assert order[4:] == [10, 4, 11, 5, 12, 6, 13, 7]


def test_samples_of_one_request_are_charged_too() -> None:
    """Forks compute no prompt but their outputs count: 8 more samples push the tenant's next request back."""
    policy = FairPolicy()
    parent = make_sequence(0, 20, num_output=10, tenant="a")
    policy.arrived(parent, 0)
    policy.started(parent)
    for child in range(1, 9):
        policy.arrived(make_sequence(child, 20, num_output=10, tenant="a"), 19)
    after = make_sequence(9, 20, tenant="a")
    policy.arrived(after, 0)
    assert policy.place(after)[0] == (20 + 2 * 10) + 8 * (1 + 2 * 10)


def test_a_fork_pays_for_what_it_computes() -> None:
    """A token of the prompt and its output, whether it ran at once or waited."""
    for max_num_seqs in (2, 3):
        harness = Harness(kv_config(num_blocks=400), policy="fair", max_num_seqs=max_num_seqs)
        parent, other = make_sequence(0, 20, num_output=20, tenant="a"), make_sequence(1, 4, num_output=90, tenant="b")
        harness.add(parent, other)
        harness.step()
        child = make_sequence(2, parent.token_ids[:20], num_output=10, tenant="a")
        harness.scheduler.fork(parent, child, 19)
        while not (parent.finished and child.finished):
            harness.step()
        waited = child.num_cached_tokens > 0
        assert waited == (max_num_seqs == 2)
        later = make_sequence(3, 4, tenant="a")
        harness.add(later)
        assert harness.scheduler._policy.place(later)[0] == (20 + 2 * 20) + ((not waited) + 2 * 10)


def test_of_equal_tags_the_first_to_come_goes_first() -> None:
    harness = Harness(policy="fair", max_num_seqs=1)
    later, earlier = (make_sequence(i, 4, tenant=str(i), arrival_time=5 - i) for i in range(2))
    harness.add(later, earlier)
    assert harness.scheduler.waiting == [earlier, later]


def test_who_runs_again_after_a_preemption_turns_no_clock_back() -> None:
    policy = FairPolicy()
    first, second = (make_sequence(i, 20, num_output=10, tenant="a") for i in range(2))
    for sequence in (first, second):
        policy.arrived(sequence, 0)
    for sequence in (first, second, first):
        policy.started(sequence)
    late = make_sequence(2, 4, tenant="b")
    policy.arrived(late, 0)
    assert policy.place(late)[0] == policy.place(second)[0] == 20 + 2 * 10


def test_a_request_that_names_no_bound_waits_no_longer_for_it() -> None:
    """Both tenants' outputs end after 4 tokens; one left the bound at the whole context."""
    harness = Harness(kv_config(num_blocks=4000), policy="fair", max_num_seqs=1)
    every = frozenset(range(1000))
    vague = [
        make_sequence(i, 40, num_output=2000, min_tokens=3, stop_token_ids=every, tenant="a", arrival_time=i)
        for i in range(3)
    ]
    exact = [make_sequence(i, 40, tenant="b", arrival_time=i) for i in range(3, 63)]
    harness.add(*vague, *exact)
    order = finish_order(harness, vague + exact)
    assert order.index(2) < 12


def test_memory_is_bounded_however_many_tenants_come() -> None:
    """The system is never idle, and each tenant comes once."""
    policy = FairPolicy()
    running = make_sequence(0, 4, tenant="steady")
    policy.arrived(running, 0)
    policy.started(running)
    for i in range(1, 3 * MAX_IDLE_TENANTS):
        sequence = make_sequence(i, 4, tenant=f"tenant-{i}")
        policy.arrived(sequence, 0)
        policy.started(sequence)
        policy.finished(sequence)
        assert policy.num_tenants == 1 + min(i, MAX_IDLE_TENANTS)
    back = [make_sequence(i, 4, tenant=tenant) for i, tenant in enumerate((sequence.tenant, "tenant-1"), -2)]
    for sequence in back:
        policy.arrived(sequence, 0)
    assert [policy.place(sequence)[0] for sequence in back] == [4, 0], "whoever was idle longest is forgotten first"
    assert policy.num_tenants == 1 + MAX_IDLE_TENANTS + 1
    for sequence in (*back, running):
        policy.finished(sequence)
    assert policy.num_tenants == 0


def test_a_cached_prefix_costs_nothing_and_each_output_token_two() -> None:
    policy = FairPolicy()
    running, waiting = make_sequence(0, 20, num_output=10, tenant="a"), make_sequence(1, 4, tenant="b")
    for sequence in (running, waiting):
        policy.arrived(sequence, 0)
    policy.started(running)
    running.num_cached_tokens = 16
    running.token_ids.append(7)
    policy.finished(running)
    again = make_sequence(2, 4, tenant="a")
    policy.arrived(again, 0)
    assert policy.place(again)[0] == 20 - 16 + 2 * 1
