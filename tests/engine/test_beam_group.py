"""Beam search against the plain algorithm, over a model that is a table: ends of text, length penalties, memory."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.scheduler.harness import Harness, kv_config
from tests.scheduler.simulated_worker import SimulatedWorker

from quire.core.request import Request
from quire.core.sampling_params import BeamSearchParams, SamplingParams
from quire.core.sequence import FinishReason
from quire.core.step import RowPlan, RowResult, TokenLogprobs
from quire.core.wire import BeamDelta
from quire.engine.engine import Engine

V, EOS = 8, (3, 5, 6)
PROMPT = [1, 2, 3, 4, 5, 6]

Beam = tuple[list[int], float, FinishReason]


def next_logprobs(token_ids: list[int]) -> list[float]:
    """Of each token after these, a function of all of them."""
    weights = [1 + hash((tuple(token_ids), token_id)) % 97 for token_id in range(V)]
    return [math.log(weight / sum(weights)) for weight in weights]


class TableWorker(SimulatedWorker):
    """Reports the `num_logprobs` likeliest tokens behind the chosen one, as the sampler does."""

    num_logprobs = 0

    def _read_and_sample(self, plan: RowPlan) -> RowResult:
        token_ids = list(self.rows[plan.seq_id].token_ids)
        result = super()._read_and_sample(plan)
        if result.token_ids:
            logprobs = next_logprobs(token_ids)
            top = sorted(range(V), key=lambda token_id: -logprobs[token_id])[: self.num_logprobs]
            ids = [result.token_ids[0], *top]
            result.logprobs = [TokenLogprobs(ids, [logprobs[i] for i in ids], [0] * len(ids))]
        return result


def make_engine(search: BeamSearchParams, num_blocks: int = 400) -> Engine:
    harness = Harness(kv_config(num_blocks=num_blocks))
    worker = TableWorker(harness.kv.config, V)
    worker.num_logprobs = 2 * search.beam_width
    return Engine(harness.scheduler, worker)


def request(search: BeamSearchParams, prompt: list[int] = PROMPT, request_id: str = "r") -> Request:
    return Request(
        request_id=request_id,
        prompt_token_ids=prompt,
        sampling_params=SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, logprobs=2 * search.beam_width),
        beam_search=search,
        eos_token_ids=list(EOS),
        max_num_tokens=len(prompt) + search.max_tokens,
    )


def run(engine: Engine) -> dict[str, BeamDelta]:
    found: dict[str, BeamDelta] = {}
    for _ in range(300):
        for delta in engine.step():
            assert isinstance(delta, BeamDelta)
            assert delta.request_id not in found
            found[delta.request_id] = delta
        if not engine.has_unfinished:
            break
    assert not engine.has_unfinished
    assert engine.scheduler.kv.pool.num_held == 0
    return found


def plainly(search: BeamSearchParams, prompt: list[int] = PROMPT) -> list[Beam]:
    def score(beam: Beam) -> float:
        output, logprob, reason = beam
        length = len(output) - (reason is FinishReason.STOP)
        return logprob / max(length, 1) ** search.length_penalty

    live, complete = [([], 0.0, FinishReason.LENGTH)], list[Beam]()
    for _ in range(search.max_tokens):
        grown = list[Beam]()
        for output, logprob, _ in live:
            logprobs = next_logprobs(prompt + output)
            for token_id in sorted(range(V), key=lambda token_id: -logprobs[token_id])[: 2 * search.beam_width]:
                ends = token_id in EOS and not search.ignore_eos
                reason = FinishReason.STOP if ends else FinishReason.LENGTH
                grown.append(([*output, token_id], logprob + logprobs[token_id], reason))
        grown.sort(key=score, reverse=True)
        complete += [beam for beam in grown if beam[2] is FinishReason.STOP]
        live = [beam for beam in grown if beam[2] is FinishReason.LENGTH][: search.beam_width]
    return sorted(complete + live, key=score, reverse=True)[: search.beam_width]


@given(
    width=st.integers(1, 5),
    max_tokens=st.integers(1, 5),
    ignore_eos=st.booleans(),
    length_penalty=st.sampled_from([1.0, 0.0, 2.0, -1.0]),
    prompt=st.lists(st.integers(0, V - 1), min_size=1, max_size=9),
)
def test_the_best_hypotheses_are_those_of_the_plain_algorithm(
    width: int, max_tokens: int, ignore_eos: bool, length_penalty: float, prompt: list[int]
) -> None:
    search = BeamSearchParams(
        beam_width=width, max_tokens=max_tokens, ignore_eos=ignore_eos, length_penalty=length_penalty
    )
    engine = make_engine(search)
    engine.add_request(request(search, prompt))
    found = run(engine)["r"]
    assert found.error is None
    expected = plainly(search, prompt)
    assert [logprob for _, logprob, _ in found.hypotheses] == pytest.approx([logprob for _, logprob, _ in expected])
    assert [(o, r) for o, _, r in found.hypotheses] == [(o, r) for o, _, r in expected]


def test_a_hypothesis_computes_its_newest_token_and_shares_the_rest() -> None:
    search = BeamSearchParams(beam_width=3, max_tokens=6, ignore_eos=True)
    engine = make_engine(search)
    engine.add_request(request(search))
    run(engine)
    worker = engine.steps.executor
    assert isinstance(worker, TableWorker)
    assert worker.num_computed_tokens == len(PROMPT) + 3 * 5


def test_searches_beside_each_other_that_hardly_fit_find_the_same() -> None:
    search = BeamSearchParams(beam_width=4, max_tokens=6)
    prompts = [PROMPT, PROMPT[:3], [7, 7, 7, 7]]
    engine = make_engine(search, num_blocks=10)
    for number, prompt in enumerate(prompts):
        engine.add_request(request(search, prompt, str(number)))
    found = run(engine)
    assert engine.scheduler.num_prompt_tokens == sum(map(len, prompts)), "counted once, also where a hypothesis waits"
    for number, prompt in enumerate(prompts):
        assert [output for output, *_ in found[str(number)].hypotheses] == [o for o, *_ in plainly(search, prompt)]


def test_a_hypothesis_that_cannot_go_on_ends_the_search() -> None:
    search = BeamSearchParams(beam_width=3, max_tokens=6)
    engine = make_engine(search)
    engine.add_request(request(search))
    engine.step()
    worker = engine.steps.executor
    assert isinstance(worker, TableWorker)
    worker.failing.add(engine.scheduler.running[1].seq_id)
    found = run(engine)["r"]
    assert found.hypotheses == []
    assert found.error is not None
    assert found.error.cause == "not_finite"


@pytest.mark.parametrize("num_steps", [1, 2, 3])
def test_an_aborted_search_keeps_nothing(num_steps: int) -> None:
    search = BeamSearchParams(beam_width=3, max_tokens=6)
    engine = make_engine(search)
    engine.add_request(request(search))
    for _ in range(num_steps):
        engine.step()
    assert engine.scheduler.kv.pool.num_held
    engine.abort("r")
    assert engine.scheduler.kv.pool.num_held == 0
    assert run(engine) == {}
