"""The engine's counters, against what it was asked to do."""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise

import msgspec
from tests.scheduler.harness import Harness, kv_config

from quire.core.request import Request
from quire.core.sampling_params import SamplingParams
from quire.core.stats import STEP_TOKEN_BOUNDS, EngineStats
from quire.engine.engine import Engine
from quire.engine.stats import collect_stats


def make_engine(num_blocks: int = 65) -> Engine:
    harness = Harness(kv_config(num_blocks=num_blocks))
    return Engine(harness.scheduler, harness.worker)


def request(name: str, prompt: list[int], num_output: int, n: int = 1) -> Request:
    return Request(
        request_id=name,
        prompt_token_ids=prompt,
        sampling_params=SamplingParams(n=n, max_tokens=num_output),
        max_num_tokens=len(prompt) + num_output,
        tenant="someone",
    )


def run(engine: Engine) -> list[EngineStats]:
    seen = [collect_stats(engine)]
    while engine.has_unfinished:
        engine.step()
        seen.append(collect_stats(engine))
    return seen


def test_totals_are_what_was_asked_for() -> None:
    engine = make_engine()
    engine.add_request(request("one", list(range(20)), 5))
    engine.add_request(request("three", list(range(100, 110)), 4, n=3))
    last = run(engine)[-1]
    assert last.num_prompt_tokens == 20 + 10
    assert last.num_generation_tokens == 5 + 3 * 4
    assert engine.steps.num_steps == sum(last.step_tokens.counts)
    assert (last.num_running, last.num_waiting, last.num_held_blocks) == (0, 0, 0)
    engine.add_request(request("again", list(range(20)), 5))
    again = run(engine)[-1]
    assert again.num_prefix_hit_tokens == 16
    assert again.num_prompt_tokens == 20 + 10 + 20, "cached tokens count as prompt tokens"


def test_totals_only_grow_and_blocks_add_up() -> None:
    engine = make_engine(num_blocks=12)
    for number in range(6):
        engine.add_request(request(str(number), [100 * number + i for i in range(12)], 20))
    seen = run(engine)
    assert seen[-1].num_preemptions > 0
    assert max(stats.num_preempted for stats in seen) > 0
    for before, after in pairwise(seen):
        for total in ("num_prompt_tokens", "num_generation_tokens", "num_preemptions"):
            assert getattr(after, total) >= getattr(before, total)
    for stats in seen:
        assert stats.num_free_blocks + stats.num_cached_blocks + stats.num_held_blocks == stats.num_blocks == 11
        assert stats.num_preempted <= stats.num_waiting
        assert stats.kv_cache_usage == stats.num_held_blocks / 11
    assert seen[-1].num_prompt_tokens == 6 * 12, "a preempted prompt counts once"
    assert seen[-1].num_generation_tokens == 6 * 20


def test_tokens_of_a_step_fall_into_their_bucket() -> None:
    engine = make_engine()
    engine.add_request(request("one", list(range(20)), 3))
    last = run(engine)[-1]
    assert last.step_tokens.total == 20 + 1 + 1
    assert last.step_tokens.counts[bisect_left(STEP_TOKEN_BOUNDS, 20)] == 1
    assert last.step_tokens.counts[0] == 2


def test_a_snapshot_is_a_wire_type_and_does_not_move() -> None:
    engine = make_engine()
    engine.add_request(request("one", list(range(20)), 3))
    engine.step()
    stats = collect_stats(engine)
    encoded = msgspec.msgpack.encode(stats)
    run(engine)
    assert msgspec.msgpack.encode(stats) == encoded
    assert msgspec.msgpack.decode(encoded, type=EngineStats) == stats


def test_queue_time_ends_when_the_first_step_is_planned() -> None:
    engine = make_engine()
    engine.add_request(request("one", list(range(100)), 2))
    first_step = engine.step()
    assert first_step == [], "a prompt of two chunks"
    delta = engine.step()[0]
    (sequence,) = engine.scheduler.running
    assert delta.first_scheduled_time == sequence.first_scheduled_time is not None
    run(engine)
