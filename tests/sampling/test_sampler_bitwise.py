"""Rows are bitwise independent (ADR 5): batch, index, neighbours, threads and rebuilt rows change no bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from tests.sampling.backends import BACKENDS, FASTEST

from quire.core.sampling_params import SamplingParams
from quire.kernels import native_module
from quire.sampling.distribution import draw_one, token_weights
from quire.sampling.logprobs import log_softmax
from quire.sampling.sampler import SampledToken, Sampler, SamplingRow

PROBES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0, "logprobs": 5},
    "plain": {"temperature": 0.9, "logprobs": 5},
    "top_p": {"temperature": 1.3, "top_p": 0.95, "logprobs": 0},
    "top_k": {"top_k": 50, "logprobs": 2},
    "min_p": {"min_p": 0.001, "logprobs": 2},
    "penalties": {"temperature": 0.0, "presence_penalty": 0.3, "frequency_penalty": 0.2, "repetition_penalty": 1.3},
    "everything": {
        "temperature": 1.2, "top_k": 900, "top_p": 0.9, "min_p": 1e-4, "presence_penalty": 0.3, "min_tokens": 90,
        "frequency_penalty": 0.2, "repetition_penalty": 1.3, "logit_bias": {9: 2.5}, "bad_words_token_ids": [[3]],
        "logprobs": 3, "max_tokens": None,
    },
}  # fmt: skip
HISTORY = [(7 * i) % 501 for i in range(60)]


@pytest.fixture(params=[1, 2], ids=["1 thread", "2 threads"])
def num_threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before, native_before = torch.get_num_threads(), native_module.thread_count()
    use_threads(request.param)
    yield request.param
    torch.set_num_threads(before)
    native_module.use_num_threads(native_before)


def use_threads(count: int) -> None:
    torch.set_num_threads(count)
    native_module.use_num_threads(count)


def probe_row(probe: str) -> SamplingRow:
    return SamplingRow(SamplingParams(**PROBES[probe]), 77, list(HISTORY), 20, [2, 5])


def probe_logits(vocab_size: int) -> torch.Tensor:
    return torch.randn(vocab_size, generator=torch.Generator().manual_seed(8)) * 3


def hostile(count: int, vocab_size: int) -> tuple[torch.Tensor, list[SamplingRow]]:
    """Neighbours of every kind: rows that fail, rows of extremes, and every feature."""
    logits = torch.randn(count, vocab_size, generator=torch.Generator().manual_seed(count)) * 5
    logits[0::7, 3] = torch.nan
    logits[1::7] = -torch.inf
    logits[2::7, 1] = torch.inf
    logits[3::7] = 0.0
    logits[4::7] = 3e38
    logits[5::7, ::2] = -torch.inf
    params = [SamplingParams(**fields) for fields in PROBES.values()]
    params.append(SamplingParams(repetition_penalty=1e-300))
    return logits, [SamplingRow(params[i % len(params)], i, list(HISTORY), 20, [2]) for i in range(count)]


def among(sampler: Sampler, probe: str, vocab_size: int, num_neighbours: int, index: int) -> SampledToken:
    logits, rows = hostile(num_neighbours, vocab_size)
    logits = torch.cat([logits[:index], probe_logits(vocab_size)[None], logits[index:]])
    rows.insert(index, probe_row(probe))
    return sampler.sample(logits.numpy(), rows)[index]


@pytest.mark.parametrize("vocab_size", [501, 49_152, 50_257])
@pytest.mark.parametrize("probe", PROBES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_alone_and_among_hostile_neighbours(backend: str, probe: str, vocab_size: int, num_threads: int) -> None:
    use_threads(1)
    sampler = Sampler(vocab_size, BACKENDS[backend](vocab_size))
    alone = sampler.sample(probe_logits(vocab_size)[None].numpy(), [probe_row(probe)])[0]
    assert alone.error is None
    use_threads(num_threads)
    for num_neighbours, index in [(0, 0), (1, 0), (1, 1), (16, 9), (63, 0), (63, 30), (63, 63)]:
        assert among(sampler, probe, vocab_size, num_neighbours, index) == alone, (num_neighbours, index)


@pytest.mark.parametrize("vocab_size", [49_152, 50_257])
def test_every_intermediate_result_is_the_same_bit_for_bit(vocab_size: int, num_threads: int) -> None:
    """A token hides a moved last bit almost always, so the weights and logprobs themselves are compared."""
    logits = (torch.randn(64, vocab_size, generator=torch.Generator().manual_seed(1)) * 4).numpy()
    largest = logits.max(axis=1).tolist()
    torch.set_num_threads(1)
    alone = [token_weights([logits[i]], largest[i : i + 1], [0.7])[0] for i in range(64)]
    cumulative = [weights.cumsum(0) for weights in alone]
    logprobs = [log_softmax(row.copy()) for row in logits]
    torch.set_num_threads(num_threads)
    together = token_weights(list(logits), largest, [0.7] * 64)
    assert np.array_equal(together, np.stack(alone))
    assert np.array_equal(together.cumsum(-1), np.stack(cumulative))
    assert [row.sum() for row in together] == [row.copy().sum() for row in alone]
    assert all(np.array_equal(log_softmax(logits[i]), logprobs[i]) for i in range(64))


@pytest.mark.parametrize("backend", BACKENDS)
def test_both_ways_to_draw_are_one(backend: str) -> None:
    """A truncation that removes nothing draws what no truncation draws."""
    logits = (torch.randn(40, 3000, generator=torch.Generator().manual_seed(2))).repeat(2, 1)
    plain, cut = SamplingParams(), SamplingParams(top_p=1 - 2**-53)
    rows = [SamplingRow(params, seed, [0], 1, []) for params in (plain, cut) for seed in range(40)]
    sampled = [token.token_id for token in Sampler(3000, BACKENDS[backend](3000)).sample(logits.numpy(), rows)]
    assert sampled[:40] == sampled[40:]


@pytest.mark.parametrize(
    ("weights", "uniform", "drawn"),
    [
        ([0.0, 1.0, 1.0, 0.0], 0.0, 1),
        ([0.0, 1.0, 1.0, 0.0], 0.5, 2),
        ([0.0, 1.0, 1.0, 0.0], 1 - 2**-53, 2),
        ([0.0, 1.0, 2**-60, 0.0], 1 - 2**-53, 1),
        ([0.3, 0.7 + 1e-16, 0.0], 1 - 2**-53, 1),
        ([1.0, 1e-9, 1 / 3, 0.0], 1 - 2**-53, 2),
    ],
)
def test_a_draw_on_a_border_takes_a_possible_token(weights: list[float], uniform: float, drawn: int) -> None:
    assert draw_one(np.array(weights), uniform) == drawn


def next_logits(token_ids: list[int], vocab_size: int) -> torch.Tensor:
    """A stand-in for a model: logits that depend on the tokens before them."""
    generator = torch.Generator().manual_seed(hash(tuple(token_ids[-4:])) % 2**31)
    return torch.randn(1, vocab_size, generator=generator) * 2


@pytest.mark.parametrize("probe", ["plain", "penalties", "everything"])
def test_a_row_rebuilt_at_any_step_goes_on_as_before(probe: str) -> None:
    """After a preemption or a fork a new row starts over a longer list; its derived state must be as if it had lived."""
    params = SamplingParams(**PROBES[probe])
    sampler, lived, rebuilt = Sampler(501, FASTEST(501)), list(HISTORY), list(HISTORY)
    row = SamplingRow(params, 77, lived, 20, [2, 5])
    for step in range(60):
        lived.append(sampler.sample(next_logits(lived, 501).numpy(), [row])[0].token_id)
        if step % 3 == 0:
            other = SamplingRow(params, 77, rebuilt, 20, [2, 5])
        rebuilt.append(sampler.sample(next_logits(rebuilt, 501).numpy(), [other])[0].token_id)
    assert lived == rebuilt
    assert len(set(lived[60:])) > 10


@pytest.mark.parametrize("backend", BACKENDS)
def test_prompt_logprobs_do_not_depend_on_the_chunk(backend: str, num_threads: int) -> None:
    logits = (torch.randn(40, 49_152, generator=torch.Generator().manual_seed(3)) * 3).numpy()
    token_ids = list(range(0, 4000, 100))
    sampler = Sampler(49_152, BACKENDS[backend](49_152))
    whole = sampler.prompt_logprobs(logits, token_ids, 2)
    for size in (1, 7, 16):
        chunks = [sampler.prompt_logprobs(logits[i : i + size], token_ids[i : i + size], 2) for i in range(0, 40, size)]
        assert [position for chunk in chunks for position in chunk] == whole
