"""A row that cannot be sampled says why, and only that row suffers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tests.sampling.backends import BACKENDS

from quire.core.sampling_params import SamplingParams
from quire.sampling.sampler import Sampler, SamplingRow

GOOD = [0.0, 3.0, 1.0, 2.0]
NAN, INF = math.nan, math.inf

pytestmark = pytest.mark.parametrize("backend", BACKENDS)


@pytest.mark.parametrize("neighbour", [{"temperature": 0.0}, {"top_p": 0.5}, {"temperature": 1.5}])
@pytest.mark.parametrize("fields", [{"temperature": 0.0}, {}, {"top_p": 0.9, "top_k": 2}, {"logit_bias": {0: 1.0}}])
@pytest.mark.parametrize(
    "bad", [[NAN, 1.0, 2.0, 3.0], [1.0, 2.0, 3.0, NAN], [NAN] * 4, [-INF] * 4, [INF, 1.0, 1.0, 1.0], [INF, -INF, NAN, 0.0]]
)  # fmt: skip
def test_logits_that_are_not_finite(
    bad: list[float], fields: dict[str, Any], neighbour: dict[str, Any], backend: str
) -> None:
    def good_row() -> SamplingRow:
        return SamplingRow(SamplingParams(**neighbour, logprobs=2), 6, [1, 2], 1, [])

    sampler = Sampler(4, BACKENDS[backend](4))
    expected = sampler.sample(torch.tensor([GOOD]).numpy(), [good_row()])[0]
    bad_row = SamplingRow(SamplingParams(**fields, logprobs=2), 5, [1, 2, 3], 1, [])
    first, second, third = sampler.sample(torch.tensor([GOOD, bad, GOOD]).numpy(), [good_row(), bad_row, good_row()])
    assert (first, third) == (expected, expected)
    assert second.error is not None
    assert second.error.cause == "not_finite"
    assert "position 3" in second.error.sentence
    assert "not finite" in second.error.sentence
    assert second.logprobs is None


def test_rows_that_only_take_their_most_likely_token_are_looked_at_too(backend: str) -> None:
    rows = [SamplingRow(SamplingParams(temperature=0.0), 5, [1, 2, 3], 1, []) for _ in range(2)]
    good, bad = Sampler(4, BACKENDS[backend](4)).sample(torch.tensor([GOOD, [NAN, 1.0, 2.0, 3.0]]).numpy(), rows)
    assert (good.token_id, good.error) == (1, None)
    assert bad.error is not None
    assert bad.error.cause == "not_finite"


@pytest.mark.parametrize(
    "fields",
    [
        {"allowed_token_ids": [2], "bad_words_token_ids": [[2]]},
        {"allowed_token_ids": [3], "min_tokens": 5},
        {"bad_words_token_ids": [[0], [1], [2], [3]]},
        {"repetition_penalty": 1e-300},
        {"repetition_penalty": 1e-300, "temperature": 0.0, "frequency_penalty": 2.0},
    ],
)
def test_nothing_left_to_choose(fields: dict[str, Any], backend: str) -> None:
    row = SamplingRow(SamplingParams(**fields), 5, [1, 2, 0, 1], 1, [3])
    token = Sampler(4, BACKENDS[backend](4)).sample(torch.tensor([GOOD]).numpy(), [row])[0]
    assert token.error is not None
    assert token.error.cause == "nothing_left"
    assert "allowed_token_ids" in token.error.sentence
    assert "relax" in token.error.sentence


def test_masked_by_the_model_is_not_an_error(backend: str) -> None:
    rows = [SamplingRow(SamplingParams(), seed, [0], 1, []) for seed in range(200)]
    sampled = Sampler(4, BACKENDS[backend](4)).sample(torch.tensor([[-INF, 1.0, -INF, 1.0]] * 200).numpy(), rows)
    assert {token.token_id for token in sampled} == {1, 3}
    assert all(token.error is None for token in sampled)


def test_no_rows(backend: str) -> None:
    assert Sampler(4, BACKENDS[backend](4)).sample(torch.empty(0, 4).numpy(), []) == []
