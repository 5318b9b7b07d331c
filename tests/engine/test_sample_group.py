"""n samples of one prompt, through an engine whose worker is simulated: seeds, forks, ends, and that every block comes back."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from tests.scheduler.harness import VOCAB_SIZE, Harness, kv_config
from tests.scheduler.simulated_worker import SimulatedWorker, expected_output

from quire.core.request import Request
from quire.core.sampling_params import SamplingParams
from quire.core.sequence import FinishReason
from quire.core.step import RowPlan, RowResult, TokenLogprobs
from quire.core.wire import SampleDelta
from quire.engine.engine import Engine
from quire.engine.sample_group import SEED_STRIDE

PROMPT = list(range(10))


class PromptScores(SimulatedWorker):
    """The logprob of a prompt's token is its negative position."""

    def _read_and_sample(self, plan: RowPlan) -> RowResult:
        result = super()._read_and_sample(plan)
        positions = range(plan.start + 1, min(plan.start + plan.num_tokens + 1, len(PROMPT)))
        result.prompt_logprobs = [TokenLogprobs([PROMPT[p]], [-float(p)], [1]) for p in positions]
        return result


def make_engine(num_blocks: int = 65, **fields: Any) -> Engine:
    harness = Harness(kv_config(num_blocks=num_blocks), **fields)
    return Engine(harness.scheduler, PromptScores(harness.kv.config, VOCAB_SIZE))


def request(n: int, num_output: int = 5, request_id: str = "r", **fields: Any) -> Request:
    return Request(
        request_id=request_id,
        prompt_token_ids=PROMPT,
        sampling_params=SamplingParams(n=n, max_tokens=num_output, **fields),
        max_num_tokens=len(PROMPT) + num_output,
        seed=2**64 - 1,
    )


def worker(engine: Engine) -> SimulatedWorker:
    assert isinstance(engine.steps.executor, SimulatedWorker)
    return engine.steps.executor


def run(engine: Engine) -> dict[int, list[SampleDelta]]:
    """Every delta of each sample."""
    found = defaultdict(list)
    for _ in range(300):
        for delta in engine.step():
            assert isinstance(delta, SampleDelta)
            found[delta.index].append(delta)
        if not engine.has_unfinished:
            break
    assert engine.scheduler.kv.pool.num_held == 0
    assert not engine.has_unfinished
    return found


@pytest.mark.parametrize("num_output", [1, 2, 5])
@pytest.mark.parametrize("fields", [{}, {"max_num_seqs": 2}, {"num_blocks": 9}], ids=["free", "few rows", "few blocks"])
def test_each_sample_has_a_seed_of_its_own_and_the_prompt_is_computed_once(
    num_output: int, fields: dict[str, int]
) -> None:
    engine = make_engine(**fields)
    engine.add_request(request(4, num_output))
    found = run(engine)
    for index in range(4):
        seed = (2**64 - 1 + index * SEED_STRIDE) % 2**64
        token_ids = [token_id for delta in found[index] for token_id in delta.token_ids]
        assert token_ids == expected_output(PROMPT, len(PROMPT) + num_output, seed, VOCAB_SIZE)[len(PROMPT) :]
        assert [delta.finish_reason for delta in found[index] if delta.finish_reason] == [FinishReason.LENGTH]
    assert engine.scheduler.num_prompt_tokens == len(PROMPT), "counted once, also where samples wait"
    if not fields:
        assert worker(engine).num_computed_tokens == len(PROMPT) + 3 + 4 * (num_output - 1)


def test_a_sample_that_was_ended_says_no_more_and_the_others_go_on() -> None:
    engine = make_engine()
    engine.add_request(request(3))
    engine.step()
    for _ in range(2):
        engine.finish_sample("r", 1, "\n")
    found = run(engine)
    assert 1 not in found
    assert [sum(len(delta.token_ids) for delta in found[index]) for index in (0, 2)] == [4, 5]


def test_a_request_ends_with_its_last_sample() -> None:
    engine = make_engine()
    engine.add_request(request(2))
    engine.step()
    engine.finish_sample("r", 0, "\n")
    assert engine.has_request("r")
    engine.finish_sample("r", 1, "\n")
    assert not engine.has_request("r")
    assert engine.scheduler.kv.pool.num_held == 0
    assert run(engine) == {}


@pytest.mark.parametrize("num_steps", [1, 2, 3])
def test_an_aborted_request_keeps_nothing(num_steps: int) -> None:
    """In the middle of its prompt, with samples that have not run, and with all of them running."""
    engine = make_engine(max_num_batched_tokens=6)
    engine.add_request(request(3))
    for _ in range(num_steps):
        engine.step()
    assert engine.scheduler.kv.pool.num_held
    engine.abort("r")
    assert engine.scheduler.kv.pool.num_held == 0
    assert run(engine) == {}


def test_what_ends_the_first_before_there_are_others_ends_them_too() -> None:
    engine = make_engine()
    engine.add_request(request(3, prompt_logprobs=0))
    worker(engine).without_tokens.add(0)
    found = run(engine)
    assert sorted(found) == [0, 1, 2]
    for (delta,) in found.values():
        assert (delta.token_ids, delta.finish_reason, delta.prompt_logprobs) == ([], FinishReason.ERROR, None)
        assert delta.error is not None
        assert delta.error.cause == "nothing_left"


def test_an_error_of_one_sample_is_its_own() -> None:
    engine = make_engine()
    engine.add_request(request(3))
    engine.step()
    worker(engine).without_tokens.add(1)
    found = run(engine)
    assert [found[index][-1].finish_reason for index in range(3)] == [
        FinishReason.LENGTH,
        FinishReason.ERROR,
        FinishReason.LENGTH,
    ]


@pytest.mark.parametrize("fields", [{}, {"max_num_batched_tokens": 4}], ids=["at once", "in chunks"])
def test_prompt_logprobs_come_once_and_whole_with_the_first_sample(fields: dict[str, int]) -> None:
    engine = make_engine(**fields)
    engine.add_request(request(2, prompt_logprobs=0))
    first, *later = run(engine)[0]
    assert first.prompt_logprobs is not None
    assert [at.logprobs[0] for at in first.prompt_logprobs] == [-float(position) for position in range(1, 10)]
    assert all(delta.prompt_logprobs is None for delta in later)


def test_a_prompt_computed_again_is_not_reported_twice() -> None:
    """Its first chunk is lost to a preemption."""
    engine = make_engine(max_num_batched_tokens=4)
    engine.add_request(request(1, prompt_logprobs=0))
    engine.step()
    (sequence,) = engine.scheduler.running
    engine.scheduler._send_back(sequence)
    deltas = run(engine)[0]
    assert engine.scheduler.num_prompt_tokens == len(PROMPT)
    assert deltas[0].prompt_logprobs is not None
    assert [at.logprobs[0] for at in deltas[0].prompt_logprobs] == [-float(position) for position in range(1, 10)]
