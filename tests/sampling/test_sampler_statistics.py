"""What is drawn has the exact distribution: chi-square over 100,000 draws of fixed seeds for each kind of request.

All backends choose by the same numbers, so the fastest draws all of them, and the others have to choose as it does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.sampling import oracle
from tests.sampling.backends import BACKENDS, FASTEST

from quire.core.sampling_params import SamplingParams
from quire.sampling.backend import SamplingBackend
from quire.sampling.sampler import Sampler, SamplingRow

V = 40
NUM_DRAWS = 100_000
NUM_COMPARED = 10_000
LOGITS = (torch.randn(V, generator=torch.Generator().manual_seed(4)) * 2).tolist()
TOKEN_IDS = [0, 1, 2, 3, 3, 30, 5, 5, 5, 7, 9, 30]
NUM_PROMPT_TOKENS = 5
STOP_TOKEN_IDS = [int(np.argmax(LOGITS))]

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "cold": {"temperature": 0.5},
    "hot": {"temperature": 1.8},
    "top_p": {"top_p": 0.8},
    "top_k": {"top_k": 7},
    "min_p": {"min_p": 0.08},
    "penalties": {"presence_penalty": 0.5, "frequency_penalty": 0.4, "repetition_penalty": 1.3},
    "negative penalties": {"presence_penalty": -0.5, "frequency_penalty": -0.4, "repetition_penalty": 0.8},
    "bias": {"logit_bias": {4: 3.0, 11: -2.0, 20: -100.0}},
    "constraints": {
        "allowed_token_ids": [*range(0, V, 2), *STOP_TOKEN_IDS], "min_tokens": 8,
        "bad_words_token_ids": [[2], [30, 6], [9, 30, 8], [30, 30, 10]],
    },
    "truncations": {"temperature": 1.3, "top_k": 20, "top_p": 0.9, "min_p": 0.02},
    "everything": {
        "temperature": 1.4, "top_k": 25, "top_p": 0.93, "min_p": 0.01, "presence_penalty": 0.4,
        "frequency_penalty": 0.3, "repetition_penalty": 1.2, "logit_bias": {4: 2.0, 8: -1.0},
        "bad_words_token_ids": [[2], [30, 6]], "min_tokens": 8,
    },
}  # fmt: skip


def exact(params: SamplingParams) -> list[float]:
    processed = oracle.processed_logits(LOGITS, params, TOKEN_IDS, NUM_PROMPT_TOKENS, STOP_TOKEN_IDS)
    return oracle.distribution(processed, params)


def rows_of(params: SamplingParams, seeds: range) -> list[SamplingRow]:
    return [SamplingRow(params, seed, TOKEN_IDS, NUM_PROMPT_TOKENS, STOP_TOKEN_IDS) for seed in seeds]


def drawn(rows: list[SamplingRow], backend: Callable[[int], SamplingBackend] = FASTEST) -> list[int]:
    logits = torch.tensor(LOGITS).expand(len(rows), V)
    return [token.token_id for token in Sampler(V, backend(V)).sample(logits.numpy(), rows)]


def draw(params: SamplingParams, seeds: range) -> list[int]:
    return drawn(rows_of(params, seeds))


def assert_drawn_from(probabilities: list[float], token_ids: list[int]) -> None:
    """Nothing impossible is drawn, and chi-square stays under its 1 - 1e-5 quantile (Wilson and Hilferty 1931)."""
    counts = np.bincount(token_ids, minlength=len(probabilities))
    expected = np.array(probabilities) * len(token_ids)
    assert not counts[expected == 0].any()
    rare = (expected > 0) & (expected < 10)
    common = expected >= 10
    observed_cells, expected_cells = list(counts[common]), list(expected[common])
    if expected[rare].sum() >= 1:
        observed_cells.append(counts[rare].sum())
        expected_cells.append(expected[rare].sum())
    statistic = sum((o - e) ** 2 / e for o, e in zip(observed_cells, expected_cells, strict=True))
    freedom = len(expected_cells) - 1
    assert freedom > 0, "the kind draws one token only and tests nothing"
    quantile = freedom * (1 - 2 / (9 * freedom) + 4.265 * math.sqrt(2 / (9 * freedom))) ** 3
    assert statistic < quantile


@pytest.mark.parametrize("kind", KINDS)
def test_exact_distribution(kind: str) -> None:
    params = SamplingParams(max_tokens=None, **KINDS[kind])
    rows = rows_of(params, range(NUM_DRAWS))
    token_ids = drawn(rows)
    assert_drawn_from(exact(params), token_ids)
    for backend in BACKENDS.values():
        compared = drawn(rows[:NUM_COMPARED], backend)
        differing = sum(one != other for one, other in zip(compared, token_ids[:NUM_COMPARED], strict=True))
        assert differing <= NUM_COMPARED // 1000, "more than lie at a border, where rounding decides"


def test_the_test_sees_a_wrong_distribution() -> None:
    """Draws at temperature 1 against the exact distribution of 1.03 fail."""
    tokens = draw(SamplingParams(), range(NUM_DRAWS))
    with pytest.raises(AssertionError):
        assert_drawn_from(exact(SamplingParams(temperature=1.03)), tokens)


def test_positions_of_one_request() -> None:
    """The draws of one long request, position after position, have the distribution too, and follow no pattern."""
    params = SamplingParams()
    token_ids: list[int] = []
    rows = [SamplingRow(params, 3, [0] * position, 0, []) for position in range(1, 2001)]
    logits = torch.tensor(LOGITS).expand(len(rows), V)
    token_ids = [token.token_id for token in Sampler(V, FASTEST(V)).sample(logits.numpy(), rows)]
    assert_drawn_from(exact(params), token_ids)
    values = np.array(token_ids, float)
    for lag in (1, 2, 7):
        assert abs(np.corrcoef(values[:-lag], values[lag:])[0, 1]) < 5 / len(values) ** 0.5


def test_same_seed_and_position_same_token() -> None:
    params = SamplingParams(temperature=1.5)
    assert draw(params, range(500)) == draw(params, range(500))
    assert draw(params, range(500)) != draw(params, range(500, 1000))
