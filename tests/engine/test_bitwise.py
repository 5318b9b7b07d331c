"""Bitwise scheduling invariance (ADR 5): how a request is scheduled never changes a bit of its answer."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.inside import runner_of

from quire import LLM, RequestOutput, SamplingParams
from quire.attention.select import BACKENDS
from quire.config import MAX_RECORDED_TOKENS
from quire.core.native import has_native_module
from quire.core.places import load_place
from quire.worker.model_runner import PROMPT_LOGPROBS_CHUNK
from quire.worker.step_programs import MAX_ROWS_TO_LOGITS, Wanted

Engine = dict[str, Any]
ENGINES: dict[str, Engine] = {
    "reference": {"backend": "reference", "dtype": "float32", "seed": 7, "num_threads": 1},
    "cpu-float32": {"backend": "cpu", "dtype": "float32", "seed": 7, "num_threads": 2},
    "cpu-bfloat16": {"backend": "cpu", "dtype": "bfloat16", "seed": 7, "num_threads": 2},
    "cpu-int8": {"backend": "cpu", "dtype": "float32", "quantization": "int8", "seed": 7, "num_threads": 1},
    "cpu-int8-kv": {"backend": "cpu", "dtype": "bfloat16", "kv_cache_dtype": "int8", "seed": 7, "num_threads": 2},
}
PROBE_LENGTH = 70


@dataclass(frozen=True)
class Answer:
    """All that must not change: tokens, and logprobs compared as exact floats."""

    token_ids: tuple[int, ...]
    logprobs: tuple[tuple[tuple[int, float, int | None], ...], ...]
    prompt_logprobs: tuple[tuple[tuple[int, float, int | None], ...], ...]


def answer(output: RequestOutput) -> Answer:
    def freeze(positions: Any) -> tuple[tuple[tuple[int, float, int | None], ...], ...]:
        return tuple(
            tuple((token_id, entry.logprob, entry.rank) for token_id, entry in position.items())
            for position in positions or ()
            if position is not None
        )

    sample = output.outputs[0]
    return Answer(tuple(sample.token_ids), freeze(sample.logprobs), freeze(output.prompt_logprobs))


def prompts(count: int, seed: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(256) for _ in range(rng.randrange(1, 150))] for _ in range(count)]


PROBE = [random.Random(99).randrange(256) for _ in range(PROBE_LENGTH)]
PROBE_PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=12, logprobs=3, ignore_eos=True),
    SamplingParams(temperature=0.9, top_p=0.9, top_k=50, seed=5, max_tokens=12, logprobs=3, ignore_eos=True),
]
NEIGHBOUR = SamplingParams(temperature=1.0, max_tokens=9, ignore_eos=True)


def alone(model: Path, params: SamplingParams, engine: Engine, **config: Any) -> Answer:
    return _alone(str(model), params, frozenset({**engine, **config}.items()))


@cache
def _alone(model: str, params: SamplingParams, config: frozenset[tuple[str, Any]]) -> Answer:
    """Many tests compare with the same one; an Answer is frozen."""
    with LLM(model, **dict(config)) as llm:
        return answer(llm.generate(PROBE, params, use_tqdm=False)[0])


def among(llm: LLM, params: SamplingParams, num_neighbours: int, position: int) -> Answer:
    batch: list[Any] = prompts(num_neighbours, seed=num_neighbours)
    batch.insert(position, PROBE)
    chosen = [NEIGHBOUR] * len(batch)
    chosen[position] = params
    return answer(llm.generate(batch, chosen, use_tqdm=False)[position])


@pytest.fixture(params=["tiny_llama", "tiny_gemma"])
def model(request: pytest.FixtureRequest) -> Path:
    path: Path = request.getfixturevalue(request.param)
    return path


@pytest.fixture(
    params=[
        pytest.param(
            name, marks=[] if name == "reference" or has_native_module() else pytest.mark.skip("no native kernels")
        )
        for name in ENGINES
    ]
)
def engine(request: pytest.FixtureRequest) -> Engine:
    return ENGINES[request.param]


@pytest.mark.parametrize("params", PROBE_PARAMS, ids=["greedy", "seeded"])
def test_alone_and_at_every_position_of_batches(model: Path, params: SamplingParams, engine: Engine) -> None:
    expected = alone(model, params, engine)
    with LLM(str(model), **engine, enable_prefix_caching=False) as llm:
        for num_neighbours in (1, 2, 7):
            for position in range(num_neighbours + 1):
                assert among(llm, params, num_neighbours, position) == expected, (num_neighbours, position)
        for position in (0, 31, 63):
            assert among(llm, params, 63, position) == expected, position
        assert among(llm, params, MAX_ROWS_TO_LOGITS + 16, 40) == expected, (
            "logits of more rows than a program computes"
        )


@pytest.mark.parametrize("params", PROBE_PARAMS, ids=["greedy", "seeded"])
@pytest.mark.parametrize("budget", [16, 23, 64, 2048])
def test_chunk_budgets(model: Path, params: SamplingParams, budget: int, engine: Engine) -> None:
    expected = alone(model, params, engine)
    with LLM(str(model), **engine, max_num_batched_tokens=budget, max_num_seqs=min(budget, 16)) as llm:
        assert among(llm, params, 5, 3) == expected


@pytest.mark.parametrize("params", PROBE_PARAMS, ids=["greedy", "seeded"])
def test_a_step_too_long_to_be_recorded(model: Path, params: SamplingParams, engine: Engine) -> None:
    """Beside steps that are."""
    assert sum(map(len, prompts(15, seed=15))) > MAX_RECORDED_TOKENS
    expected = alone(model, params, engine)
    with LLM(str(model), **engine, max_num_batched_tokens=2048) as llm:
        assert among(llm, params, 15, 7) == expected


CLAIMS = [
    (backend, str(dtype))
    for backend, place in BACKENDS.items()
    for dtype in sorted(load_place(place)().capabilities.bitwise_dtypes)
    if backend != "cpu" or has_native_module()
]


@pytest.mark.parametrize(("backend", "dtype"), CLAIMS)
def test_every_dtype_that_a_backend_claims(model: Path, backend: str, dtype: str) -> None:
    engine: Engine = {"backend": backend, "dtype": dtype, "seed": 7, "num_threads": 2}
    expected = alone(model, PROBE_PARAMS[1], engine)
    with LLM(str(model), **engine, max_num_batched_tokens=37, max_num_seqs=8) as llm:
        assert among(llm, PROBE_PARAMS[1], 7, 3) == expected


def test_prefix_cache_cold_and_warm(model: Path, engine: Engine) -> None:
    expected = alone(model, PROBE_PARAMS[0], engine, enable_prefix_caching=False)
    with LLM(str(model), **engine) as llm:
        cold = llm.generate(PROBE, PROBE_PARAMS[0], use_tqdm=False)[0]
        warm = llm.generate(PROBE, PROBE_PARAMS[0], use_tqdm=False)[0]
        together = llm.generate([PROBE] * 4, PROBE_PARAMS[0], use_tqdm=False)
    assert cold.num_cached_tokens == 0
    assert warm.num_cached_tokens == PROBE_LENGTH // 16 * 16
    assert {answer(output) for output in (cold, warm, *together)} == {expected}


@pytest.mark.parametrize("params", PROBE_PARAMS, ids=["greedy", "seeded"])
@pytest.mark.parametrize("num_steps_in_flight", [1, 2])
def test_forced_preemption(tiny_llama: Path, params: SamplingParams, num_steps_in_flight: int, engine: Engine) -> None:
    expected = alone(tiny_llama, params, engine)
    config = {**engine, "num_blocks": 26, "block_size": 16, "max_model_len": 256, "enable_prefix_caching": False}
    long = SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True)
    with LLM(str(tiny_llama), **config, num_steps_in_flight=num_steps_in_flight) as llm:
        batch = [[1] * 40, [2] * 40, [3] * 40, PROBE]
        outputs = llm.generate(batch, [long, long, long, params], use_tqdm=False)
    assert sum(output.metrics.num_preemptions for output in outputs) > 0
    assert answer(outputs[3]) == expected


@pytest.mark.parametrize("params", PROBE_PARAMS, ids=["greedy", "seeded"])
def test_two_steps_in_flight(model: Path, params: SamplingParams, engine: Engine) -> None:
    expected = alone(model, params, engine)
    with LLM(str(model), **engine, num_steps_in_flight=2) as llm:
        assert among(llm, params, 6, 2) == expected


def test_two_threads(model: Path, engine: Engine) -> None:
    """With any fixed number of threads."""
    config = {**engine, "num_threads": 2}
    with LLM(str(model), **config) as llm:
        expected = answer(llm.generate(PROBE, PROBE_PARAMS[1], use_tqdm=False)[0])
        llm.reset_prefix_cache()
        assert among(llm, PROBE_PARAMS[1], 9, 4) == expected


def test_prompt_logprobs_of_samples_that_compute_the_prompt_again(tiny_llama: Path, engine: Engine) -> None:
    """Where there is no room to fork they wait for another sample's end, and start anew while the first one still answers."""

    def run(llm: LLM, seed: int) -> tuple[Any, ...]:
        ends = tuple(range(0, 256, 20))
        params = SamplingParams(temperature=1.0, seed=seed, n=3, max_tokens=60, stop_token_ids=ends, prompt_logprobs=1)
        output = llm.generate(PROBE, params, use_tqdm=False)[0]
        return output.prompt_logprobs, [sample.token_ids for sample in output.outputs]

    with LLM(str(tiny_llama), **engine) as llm:
        answers = [run(llm, seed) for seed in range(12)]
    assert all([next(iter(position)) for position in logprobs[1:]] == PROBE[1:] for logprobs, _ in answers)
    assert any(len(first) > len(second) + len(PROBE) // 8 for _, (first, second, _) in answers), (
        "the third one has time"
    )
    with LLM(str(tiny_llama), **engine, max_num_seqs=2, max_num_batched_tokens=16) as llm:
        assert [run(llm, seed) for seed in range(12)] == answers


def test_prompt_logprobs_do_not_depend_on_chunks(model: Path, engine: Engine) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=2, prompt_logprobs=2)
    whole = alone(model, params, engine)
    assert len(whole.prompt_logprobs) == PROBE_LENGTH - 1
    of_all_but_two = (PROBE_LENGTH - 2) // 2
    for budget in (16, of_all_but_two):
        assert alone(model, params, engine, max_num_batched_tokens=budget, max_num_seqs=4) == whole


def test_prompt_logprobs_of_a_long_prompt_behind_another(model: Path, engine: Engine) -> None:
    """In one step, in several runs of logits; and in steps that have fewer tokens than such a run."""
    long = [random.Random(98).randrange(256) for _ in range(2 * PROMPT_LOGPROBS_CHUNK + 44)]
    params = SamplingParams(temperature=0.0, max_tokens=2, prompt_logprobs=1)
    found = []
    for budget in (2 * len(long), PROMPT_LOGPROBS_CHUNK // 4):
        with LLM(str(model), **engine, max_num_batched_tokens=budget, max_num_seqs=4) as llm:
            found.append(answer(llm.generate([PROBE, long], [NEIGHBOUR, params], use_tqdm=False)[1]))
    assert found[0] == found[1]
    assert [position[0][0] for position in found[0].prompt_logprobs] == long[1:]


def test_samples_of_one_request_equal_requests_of_their_own(model: Path, engine: Engine) -> None:
    """A fork shares blocks copy on write; its tokens are those of a request with the fork's seed."""
    params = SamplingParams(temperature=1.0, seed=11, n=4, max_tokens=20, ignore_eos=True)
    with LLM(str(model), **engine) as llm:
        forked = llm.generate(PROBE, params, use_tqdm=False)[0].outputs
        stride = 0x9E3779B97F4A7C15
        for sample in forked:
            seed = (11 + sample.index * stride) % 2**64
            single = SamplingParams(temperature=1.0, seed=seed, max_tokens=20, ignore_eos=True)
            assert llm.generate(PROBE, single, use_tqdm=False)[0].outputs[0].token_ids == sample.token_ids
    assert len({tuple(sample.token_ids) for sample in forked}) > 1


@pytest.mark.parametrize("kernels", [name for name in ENGINES if name != "reference"])
@pytest.mark.parametrize("family", ["tiny_gpt2", "tiny_opt"])
@pytest.mark.skipif(not has_native_module(), reason="no native kernels")
def test_layer_norm_ungated_activations_and_learned_positions(
    family: str, kernels: str, request: pytest.FixtureRequest
) -> None:
    """Families of other operators: alone, from Python, in a batch, in chunks, on one thread and on two."""
    model, params, config = request.getfixturevalue(family), PROBE_PARAMS[1], ENGINES[kernels]
    expected = alone(model, params, config, enforce_eager=True)
    for change in ({"max_num_batched_tokens": 23, "max_num_seqs": 5}, {"num_threads": 1}, {"num_threads": 2}):
        with LLM(str(model), **{**config, **change}, enable_prefix_caching=False) as llm:
            assert answer(llm.generate(PROBE, params, use_tqdm=False)[0]) == expected, change
            for num_neighbours, position in ((1, 0), (6, 4)):
                assert among(llm, params, num_neighbours, position) == expected, (change, num_neighbours)
            programs = runner_of(llm)._programs
            assert {(True, Wanted.LOGITS), (False, Wanted.LOGITS)} <= set(programs._last_tokens), (
                "steps were not recorded"
            )


@pytest.mark.nightly
@pytest.mark.real
def test_real_model(smollm2: str, engine: Engine) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=16, logprobs=3, ignore_eos=True)
    with LLM(smollm2, **engine) as llm:
        probe = llm.get_tokenizer().encode(
            "The scheduler of an inference engine decides which tokens to compute next. " * 6
        )
        expected = answer(llm.generate(probe, params, use_tqdm=False)[0])
        for position in (0, 31, 63):
            batch: list[Any] = list(prompts(63, seed=3))
            batch.insert(position, probe)
            output = llm.generate(batch, params, use_tqdm=False)[position]
            assert answer(output) == expected, position
    for config in ({"max_num_batched_tokens": 16}, {"max_num_batched_tokens": 100}, {"num_steps_in_flight": 2}):
        with LLM(smollm2, **engine, **config) as llm:
            assert answer(llm.generate(probe, params, use_tqdm=False)[0]) == expected, config
