"""Every combination of features chooses what the obvious implementation chooses."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.sampling import oracle
from tests.sampling.backends import BACKENDS, FASTEST, NEAREST

from quire.core.arrays import Float32Array
from quire.core.sampling_params import SamplingParams
from quire.sampling.noise import uniform
from quire.sampling.penalties import PenalizedLogits
from quire.sampling.sampler import Sampler, SamplingRow

V = 12
IDS = st.integers(0, V - 1)
LOGITS = st.lists(st.integers(-24, 24).map(lambda q: q / 4) | st.just(-math.inf), min_size=V, max_size=V)
"""A grid, so that ties are frequent and exact."""


class Case(NamedTuple):
    logits: list[float]
    params: SamplingParams
    seed: int
    token_ids: list[int]
    num_prompt_tokens: int
    stop_token_ids: list[int]

    def row(self) -> SamplingRow:
        return SamplingRow(self.params, self.seed, self.token_ids, self.num_prompt_tokens, self.stop_token_ids)

    def expected_token(self, nearest: float) -> int | None:
        processed = oracle.processed_logits(
            self.logits, self.params, self.token_ids, self.num_prompt_tokens, self.stop_token_ids
        )
        if max(processed) == -math.inf:
            return None
        number = uniform(self.seed, len(self.token_ids))
        assume(oracle.nearest_border(processed, self.params, number) > nearest)
        return oracle.draw(oracle.distribution(processed, self.params), number)


PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.25, 0.7, 1.0, 2.0]),
    top_k=st.sampled_from([-1, 0, 1, 2, 3, 5, V, 100]),
    top_p=st.sampled_from([1.0, 1.0, 1e-6, 0.1, 0.5, 0.8, 0.95, 0.999]),
    min_p=st.sampled_from([0.0, 0.0, 0.03, 0.3, 1.0]),
    presence_penalty=st.sampled_from([0.0, 0.5, -1.0]),
    frequency_penalty=st.sampled_from([0.0, 0.25, -0.5]),
    repetition_penalty=st.sampled_from([1.0, 2.0, 0.5]),
    logit_bias=st.none() | st.dictionaries(IDS, st.sampled_from([-100.0, -1.0, 0.5, 100.0])),
    allowed_token_ids=st.none() | st.lists(IDS, min_size=1),
    bad_words_token_ids=st.lists(st.lists(IDS, min_size=1, max_size=3), max_size=4),
    max_tokens=st.none(),
    min_tokens=st.integers(0, 6),
)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    token_ids = draw(st.lists(IDS, min_size=1, max_size=10))
    return Case(
        draw(LOGITS),
        draw(PARAMS),
        draw(st.integers(0, 2**64 - 1)),
        token_ids,
        draw(st.integers(1, len(token_ids))),
        draw(st.lists(IDS, max_size=3)),
    )


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=300)
@given(batch=st.lists(cases(), min_size=1, max_size=4))
def test_a_batch_of_any_rows(backend: str, batch: list[Case]) -> None:
    check_batch(backend, batch)


@pytest.mark.nightly
@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=20_000)
@given(batch=st.lists(cases(), min_size=1, max_size=4))
def test_many_batches_of_any_rows(backend: str, batch: list[Case]) -> None:
    check_batch(backend, batch)


def check_batch(backend: str, batch: list[Case]) -> None:
    expected = [case.expected_token(NEAREST[backend]) for case in batch]
    logits = torch.tensor([case.logits for case in batch])
    before = logits.clone()
    sampled = Sampler(V, BACKENDS[backend](V)).sample(logits.numpy(), [case.row() for case in batch])
    assert torch.equal(logits, before)
    for token, want in zip(sampled, expected, strict=True):
        if want is None:
            assert token.error is not None
        else:
            assert (token.token_id, token.error) == (want, None)


def changed_logits(row: SamplingRow, logits: Float32Array, backend: str) -> Float32Array:
    """What the row's processors and penalties make of logits [V]."""
    processed, penalized = logits.copy(), np.full_like(logits, np.nan)
    for processor in row.processors:
        processor.apply(processed)
    best = BACKENDS[backend](len(logits)).penalize([PenalizedLogits(processed, penalized, row.penalties)])
    assert best.token_ids == [penalized.argmax()]
    assert best.logits == [penalized.max()]
    return penalized


@pytest.mark.parametrize("backend", BACKENDS)
@given(case=cases())
def test_changed_logits(backend: str, case: Case) -> None:
    """The logits themselves, since most changes of a logit leave the token as it was."""
    found = changed_logits(case.row(), np.array(case.logits, np.float32), backend)
    expected = oracle.processed_logits(
        case.logits, case.params, case.token_ids, case.num_prompt_tokens, case.stop_token_ids
    )
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
def test_penalties_of_small_logits_of_either_sign(backend: str) -> None:
    """Repetition divides a positive logit and multiplies a negative one: always towards less likely, prompt included."""
    params = SamplingParams(repetition_penalty=2.0, frequency_penalty=0.5, presence_penalty=0.25)
    logits = np.array([0.5, -0.5, 0.5, 0.5, 0.0], np.float32)
    found = changed_logits(SamplingRow(params, 0, [0, 1, 2, 2], 2, []), logits, backend)
    assert found.tolist() == [0.25, -1.0, 0.25 - 1.0 - 0.25, 0.5, 0.0]


def one(logits: list[float], token_ids: list[int] | None = None, **fields: object) -> int:
    """With every backend."""
    row = SamplingRow(SamplingParams(**fields), 5, token_ids or [0], 1, [])  # type: ignore[arg-type]
    found = set()
    for backend in BACKENDS.values():
        sampled = Sampler(len(logits), backend(len(logits))).sample(torch.tensor([logits]).numpy(), [row])[0]
        assert sampled.error is None
        found.add(sampled.token_id)
    assert len(found) == 1
    return found.pop()


@pytest.mark.parametrize("fields", [{"temperature": 0.0}, {"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1.0, "top_k": 1}])
def test_ties_go_to_the_lowest_id(fields: dict[str, float]) -> None:
    for first in (0, 40_000):
        logits = [0.0] * 50_000
        for token_id in (first, first + 1, 49_999):
            logits[token_id] = 7.5
        assert one(logits, **fields) == first


def kept(logits: list[float], **fields: object) -> set[int]:
    """The tokens that many seeds draw, with every backend."""
    params = SamplingParams(**fields)  # type: ignore[arg-type]
    rows = [SamplingRow(params, seed, [0], 1, []) for seed in range(600)]
    found = []
    for backend in BACKENDS.values():
        sampler = Sampler(len(logits), backend(len(logits)))
        found.append({token.token_id for token in sampler.sample(torch.tensor([logits] * 600).numpy(), rows)})
    assert all(tokens == found[0] for tokens in found)
    return found[0]


def test_exactly_k_tokens_and_exactly_p_of_the_mass() -> None:
    """Where several tokens tie at the cut, the lowest ids stay; a nucleus that reaches top_p exactly is complete."""
    assert kept([0.0] * 8, top_k=3) == {0, 1, 2}
    assert kept([0.0, 1.0, 0.0, 1.0, 0.0], top_k=3) == {0, 1, 3}
    assert kept([0.0, 1.0, 0.0], top_k=2) == {0, 1}
    assert kept([0.0] * 8, top_p=0.5) == {0, 1, 2, 3}
    assert kept([0.0] * 8, top_p=0.51) == {0, 1, 2, 3, 4}
    assert kept([math.log(weight) for weight in (90, 5, 5)], top_p=0.94) == {0, 1}
    assert kept([0.0] * 8, min_p=1.0) == set(range(8))
    assert kept([math.log(weight) for weight in (60, 40, 20)], min_p=0.5) == {0, 1}


def test_a_draw_is_from_the_logits_as_the_request_changed_them() -> None:
    assert kept([0.0] * 8, allowed_token_ids=[2, 5]) == {2, 5}
    assert kept([0.0] * 8, logit_bias={3: 100.0}) == {3}


def test_top_p_counts_what_top_k_and_min_p_leave() -> None:
    """Of weights 4, 3, 2, 1: top_p=0.5 alone keeps 4 and 3; after top_k=2 (4/7) or min_p (4/7) only 4."""
    logits = [math.log(weight) for weight in (4, 3, 2, 1)]
    assert kept(logits, top_p=0.5) == {0, 1}
    assert kept(logits, top_p=0.5, top_k=2) == {0}
    assert kept(logits, top_p=0.5, min_p=0.7) == {0}


@pytest.mark.parametrize("fields", [{"presence_penalty": 2.0}, {"frequency_penalty": 2.0}, {"repetition_penalty": 9.0}])
def test_each_penalty_counts_without_the_others(fields: dict[str, float]) -> None:
    assert one([0.5, 1.0, -9.0], [0, 1], temperature=0.0) == 1
    assert one([0.5, 1.0, -9.0], [0, 1], temperature=0.0, **fields) == (1 if "repetition_penalty" in fields else 0)
    assert one([0.5, 1.0, -9.0], [2, 1], temperature=0.0, **fields) == 0


def test_bad_words_look_at_the_output_only() -> None:
    logits = [0.0, 5.0, 0.0, 0.0]
    fields = {"temperature": 0.0, "bad_words_token_ids": [[3, 1]]}
    assert one(logits, [3], **fields) == 1
    assert one(logits, [3, 3], **fields) == 0
    assert one(logits, [3, 3, 2], **fields) == 1


def test_min_tokens_releases_the_stop_tokens_in_time() -> None:
    params = SamplingParams(temperature=0.0, min_tokens=2)
    token_ids = [9, 9, 9]
    row = SamplingRow(params, 0, token_ids, 3, [1, 2])
    chosen = []
    for _ in range(4):
        chosen.append(Sampler(4, FASTEST(4)).sample(torch.tensor([[0.0, 9.0, 8.0, 1.0]]).numpy(), [row])[0].token_id)
        token_ids.append(chosen[-1])
    assert chosen == [3, 3, 1, 1]
