"""Draws and logprobs by native kernels against their twins in numpy, on every instruction set."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.core.arrays import Float32Array
from quire.core.native import has_native_module
from quire.kernels.native_sampling import DrawnRow, LogprobsRow, PenalizedRow, draw, logprobs, penalize
from quire.sampling.distribution import draw_one, token_weights
from quire.sampling.logprobs import token_logprobs
from quire.sampling.numpy_backend import NumpySampling
from quire.sampling.penalties import PenalizedLogits, Penalties, TokenCounts
from quire.sampling.truncation import kept_tokens

pytestmark = pytest.mark.skipif(not has_native_module(), reason="the native kernels were not built")

Truncation = tuple[int, float, float]
"""top_k, top_p, min_p."""
TRUNCATIONS: dict[str, Truncation] = {
    "none": (0, 1.0, 0.0), "top_k": (50, 1.0, 0.0), "more than blocks": (3000, 1.0, 0.0), "top_p": (0, 0.95, 0.0),
    "little of top_p": (0, 1e-6, 0.0), "most of top_p": (0, 0.9999, 0.0), "min_p": (0, 1.0, 0.05), "all": (900, 0.9, 1e-4),
}  # fmt: skip
SPREADS = {"nearly flat": 0.01, "usual": 3.0, "sharp": 20.0}
UNIFORMS = [0.0, 0.1, 0.45, 0.7, 0.999, 1 - 2**-53]


def address(row: npt.NDArray[Any]) -> int:
    found: int = row.__array_interface__["data"][0]
    return found


def twin(row: Float32Array, uniform: float, temperature: float, truncation: Truncation) -> tuple[int, float]:
    """The token, and how far the draw is from another one, in units of all weights."""
    ids, kept = kept_tokens(token_weights([row], [float(row.max())], [temperature])[0], *truncation)
    borders = np.cumsum(kept) / kept.sum()
    return int(ids[draw_one(kept, uniform)]), float(np.abs(borders - uniform).min())


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("truncation", TRUNCATIONS)
@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("vocab_size", [1, 5, 127, 128, 129, 4000, 49_152])
def test_draws_what_numpy_draws(vocab_size: int, spread: str, truncation: str) -> None:
    random = np.random.default_rng(vocab_size)
    logits = random.standard_normal((len(UNIFORMS), vocab_size), np.float32) * np.float32(SPREADS[spread])
    logits[1::2, random.random(vocab_size) < 0.3] = -np.inf
    logits[:, random.integers(vocab_size)] = 4.0
    top_k, top_p, min_p = TRUNCATIONS[truncation]
    rows = [
        DrawnRow(address(row), uniform, 0.8, min_p, top_p, top_k) for row, uniform in zip(logits, UNIFORMS, strict=True)
    ]
    for row, uniform, found in zip(logits, UNIFORMS, draw(rows, vocab_size), strict=True):
        expected, distance = twin(row, uniform, 0.8, TRUNCATIONS[truncation])
        assert row[found] > -np.inf
        assert found == expected or distance < 1e-6


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("size", [1e-45, 1e-39, 1e-38, 1e-37, 1e-31, 1e-30, 1e-20])
def test_logits_that_hardly_differ(size: float) -> None:
    """A repetition penalty of 1e38 makes such ones. Their weights are equal, so the first ones in their order are kept."""
    logits = (-np.arange(50) * size).astype(np.float32)
    logits[[3, 7]] = -np.inf
    possible = np.flatnonzero(np.isfinite(logits)).tolist()
    for top_k, top_p in ((0, 0.5), (10, 0.5), (0, 0.999), (2, 0.9)):
        kept = possible[: round(np.ceil(top_p * (top_k or len(possible))))]
        rows = [DrawnRow(address(logits), uniform, 1.0, 0.0, top_p, top_k) for uniform in UNIFORMS]
        assert set(draw(rows, len(logits))) <= set(kept)


VALUES = st.integers(-12, 12).map(lambda q: q / 4) | st.just(-np.inf)


@settings(max_examples=300)
@given(
    values=st.lists(VALUES, min_size=1, max_size=300).filter(lambda row: max(row) > -np.inf),
    temperature=st.sampled_from([1e-300, 1e-3, 0.5, 1.0, 7.0, 1e30]),
    uniform=st.floats(0, 1, exclude_max=True, allow_subnormal=False),
    top_k=st.integers(0, 5) | st.integers(0, 310),
    top_p=st.sampled_from([1e-9, 0.2, 0.7, 1.0]),
    min_p=st.sampled_from([0.0, 0.1, 1.0]),
)
def test_only_tokens_that_are_kept(
    values: list[float], temperature: float, uniform: float, top_k: int, top_p: float, min_p: float
) -> None:
    row = np.array(values, np.float32)
    found = draw([DrawnRow(address(row), uniform, temperature, min_p, top_p, top_k)], len(row))[0]
    before = np.count_nonzero(row > row[found]) + np.count_nonzero(row[:found] == row[found])
    assert row[found] > -np.inf
    assert top_k == 0 or before < top_k
    with np.errstate(all="ignore"):
        weights = np.exp((row.astype(np.float64) - row.max()) / temperature)
    assert weights[found] >= min_p * 0.999
    order = np.argsort(-row, kind="stable")
    kept = weights[order[: top_k or None]]
    kept = kept[kept >= min_p * 0.999]
    assert kept[:before].sum() < top_p * kept.sum() * 1.001


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("vocab_size", [1, 5, 128, 1000, 49_152])
def test_logprobs_and_ranks_are_those_of_numpy(vocab_size: int) -> None:
    random = np.random.default_rng(vocab_size)
    logits = random.standard_normal((6, vocab_size), np.float32) * 3
    logits[1] = np.round(logits[1])  # many are equal
    logits[2, ::2] = -np.inf
    logits[2, -1] = 1
    logits[3] = 0
    nums = [min(num, vocab_size) for num in (0, 5, 20, 3, vocab_size, 1)]
    token_ids = random.integers(0, vocab_size, 6).tolist()
    rows = [
        LogprobsRow(address(row), *wanted)
        for row, wanted in zip(logits, zip(token_ids, nums, strict=True), strict=True)
    ]
    ids, values, ranks = logprobs(rows, vocab_size)
    first = 0
    for row, token_id, num, rank in zip(logits, token_ids, nums, ranks, strict=True):
        expected = token_logprobs(row, token_id, num)
        last = first + 1 + num
        assert ids[first:last] == expected.token_ids
        assert [rank, *range(1, num + 1)] == expected.ranks
        np.testing.assert_allclose(values[first:last], expected.logprobs, atol=2e-6, rtol=1e-6)
        first = last
    assert first == len(ids)


def test_top_k_of_fewer_possible_tokens() -> None:
    row = np.full(300, -np.inf, np.float32)
    row[5], row[9] = 1, 0
    rows = [
        DrawnRow(address(row), uniform, 1.0, 0.0, top_p, 100) for uniform in (0.1, 0.9) for top_p in (0.7, 0.99, 1.0)
    ]
    assert draw(rows, 300) == [5, 5, 5, 5, 9, 9]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_rows_that_cannot_be_sampled_do_no_harm(bad: float) -> None:
    """The sampler refuses them, but prompts' logprobs are made of whatever there is."""
    logits = np.zeros((3, 700), np.float32)
    logits[1] = bad
    rows = [DrawnRow(address(row), 0.5, 1.0, 0.0, top_p, 3) for row in logits for top_p in (0.9, 1.0)]
    found = draw(rows, 700)
    assert all(0 <= token_id < 700 for token_id in found)
    assert found[:2] == found[4:]
    ids, values, ranks = logprobs([LogprobsRow(address(row), 3, 2) for row in logits], 700)
    assert (ids[:3], values[:3], ranks[0]) == (ids[6:], values[6:], ranks[2])


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("vocab_size", [1, 5, 129, 4099, 49_152])
def test_penalties_are_those_of_numpy(vocab_size: int, in_place: bool) -> None:
    random = np.random.default_rng(vocab_size)
    logits = random.standard_normal((5, vocab_size), np.float32) * 5
    logits[0, ::3] = -np.inf
    logits[1] = np.round(logits[1])  # many are equal
    logits[2, random.integers(vocab_size)] = np.nan
    penalties: list[Penalties | None] = [None]
    for presence, frequency, repetition in ((0.3, 0.0, 1.0), (0.0, -0.7, 1.3), (-1.0, 0.25, 0.5), (0.0, 0.0, 1e-300)):
        counts = TokenCounts(random.integers(0, vocab_size, 400).tolist(), 150)
        counts.update()
        penalties.append(Penalties(counts, presence, frequency, repetition))
    expected = np.empty_like(logits)
    best = NumpySampling(vocab_size).penalize(list(map(PenalizedLogits, logits, expected, penalties)))

    found = logits if in_place else np.full_like(logits, 7)
    rows = []
    for row, own, of_row in zip(logits, found, penalties, strict=True):
        if of_row is None:
            rows.append(PenalizedRow(address(row), address(own), 0, 0, 0, 0.0, 0.0, 1.0))
            continue
        token_ids, num_tokens = of_row.counts.distinct.buffer_info()
        in_output = of_row.counts.in_output.buffer_info()[0]
        rows.append(
            PenalizedRow(
                address(row), address(own), token_ids, in_output, num_tokens,
                of_row.presence, of_row.frequency, of_row.repetition,
            )
        )  # fmt: skip
    token_ids, largest = penalize(rows, vocab_size)
    np.testing.assert_allclose(found, expected, rtol=2e-7)
    assert token_ids == best.token_ids
    np.testing.assert_array_equal(largest, found[np.arange(5), token_ids])


def test_tokens_beyond_the_vocabulary_have_no_logit() -> None:
    logits, around = np.ones(8, np.float32), np.full(24, 7, np.float32)
    token_ids, in_output = np.array([3, 8, 2**40, -1], np.int64), np.ones(4, np.float32)
    row = PenalizedRow(address(logits), address(around[8:16]), address(token_ids), address(in_output), 4, 0.5, 0.0, 1.0)
    assert penalize([row], 8) == ([0], [1.0])
    assert around.tolist() == [*[7] * 8, 1, 1, 1, 0.5, 1, 1, 1, 1, *[7] * 8]
