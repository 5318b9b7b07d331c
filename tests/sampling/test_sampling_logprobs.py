"""Logprobs and ranks are the model's own, in the one order all of sampling keeps."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.sampling import oracle
from tests.sampling.backends import BACKENDS

from quire.core.sampling_params import ALL_LOGPROBS, SamplingParams
from quire.core.step import TokenLogprobs
from quire.sampling.sampler import SampledToken, Sampler, SamplingRow

V = 16


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def sample(backend: str, logits: list[float], **fields: Any) -> SampledToken:
    row = SamplingRow(SamplingParams(**fields), 4, [1, 2, 3], 2, [])
    return Sampler(len(logits), BACKENDS[backend](len(logits))).sample(torch.tensor([logits]).numpy(), [row])[0]


def prompt_logprobs(
    backend: str, logits: list[list[float]], token_ids: list[int], num_logprobs: int
) -> list[TokenLogprobs]:
    vocab_size = len(logits[0])
    sampler = Sampler(vocab_size, BACKENDS[backend](vocab_size))
    return sampler.prompt_logprobs(torch.tensor(logits).numpy(), token_ids, num_logprobs)


def assert_right(found: TokenLogprobs, logits: list[float], token_id: int, num_logprobs: int) -> None:
    ranking = oracle.ranking(logits)
    logprobs = oracle.logprobs(logits)
    assert found.token_ids == [token_id, *ranking[:num_logprobs]]
    assert found.ranks == [ranking.index(token_id) + 1, *range(1, min(num_logprobs, len(logits)) + 1)]
    assert found.logprobs == pytest.approx([logprobs[i] for i in found.token_ids], abs=1e-5)


LOGITS = st.lists(st.integers(-40, 40).map(lambda q: q / 4) | st.just(-math.inf), min_size=V, max_size=V).filter(
    lambda row: max(row) > -math.inf
)


@given(logits=LOGITS, num_logprobs=st.integers(0, V + 3), temperature=st.sampled_from([0.0, 1.0]))
def test_against_the_definition(backend: str, logits: list[float], num_logprobs: int, temperature: float) -> None:
    token = sample(backend, logits, temperature=temperature, logprobs=num_logprobs)
    assert token.logprobs is not None
    assert_right(token.logprobs, logits, token.token_id, num_logprobs)
    assert temperature > 0 or token.logprobs.ranks[0] == 1


@given(
    positions=st.lists(st.tuples(LOGITS, st.integers(0, V - 1)), min_size=1, max_size=5), num_logprobs=st.integers(0, 4)
)
def test_prompt_logprobs_against_the_definition(
    backend: str, positions: list[tuple[list[float], int]], num_logprobs: int
) -> None:
    targets = [target for _, target in positions]
    found = prompt_logprobs(backend, [row for row, _ in positions], targets, num_logprobs)
    for entry, (row, target) in zip(found, positions, strict=True):
        assert_right(entry, row, target, num_logprobs)


def test_none_are_made_unless_asked_for(backend: str) -> None:
    assert sample(backend, [0.0, 1.0]).logprobs is None


def test_the_whole_vocabulary(backend: str) -> None:
    logits = torch.randn(5000, generator=torch.Generator().manual_seed(0)).tolist()
    found = sample(backend, logits, logprobs=-1).logprobs
    assert found is not None
    assert found.token_ids[1:] == oracle.ranking(logits)
    assert found.ranks[1:] == list(range(1, 5001))
    assert math.fsum(math.exp(logprob) for logprob in found.logprobs[1:]) == pytest.approx(1, abs=1e-4)
    prompt = prompt_logprobs(backend, [logits], [17], ALL_LOGPROBS)[0]
    assert prompt.token_ids[1:] == found.token_ids[1:]


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0.25},
        {"logit_bias": {2: 50.0}},
        {"allowed_token_ids": [2]},
        {"repetition_penalty": 2.0, "presence_penalty": 2.0},
        {"top_k": 1},
    ],
)
def test_nothing_the_request_does_to_logits_shows(backend: str, fields: dict[str, Any]) -> None:
    """raw_logprobs: a forced token still has the logprob and rank the model gave it."""
    logits = [3.0, 2.0, 1.0, 0.5]
    token = sample(backend, logits, logprobs=4, **fields)
    assert token.logprobs is not None
    assert_right(token.logprobs, logits, token.token_id, 4)


def test_minus_infinity_crosses_the_wire(backend: str) -> None:
    found = sample(backend, [0.0, -math.inf, 1.0], logprobs=3).logprobs
    assert found is not None
    assert found.logprobs[-1] == -math.inf
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(found), type=TokenLogprobs) == found


def test_reported_k_are_the_lowest_ids_among_equals(backend: str) -> None:
    found = sample(backend, [1.0] * 50 + [2.0], temperature=0.0, logprobs=4).logprobs
    assert found is not None
    assert found.token_ids == [50, 50, 0, 1, 2]
