"""Vectors of texts against torch's, and bits that depend on a text alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from quire.checkpoint.model_config import PoolingKind
from quire.layers.pooling import pool, shorten_and_normalize

HIDDEN = np.random.default_rng(0).standard_normal((300, 96), np.float32)


@pytest.mark.parametrize("kind", ["cls", "mean"])
@pytest.mark.parametrize("num_tokens", [1, 2, 17, 300])
def test_a_text_becomes_one_vector(kind: PoolingKind, num_tokens: int) -> None:
    hidden = torch.from_numpy(HIDDEN[:num_tokens]).double()
    expected = hidden[:1] if kind == "cls" else hidden.mean(0, keepdim=True)
    found = pool(HIDDEN[:num_tokens], kind)
    assert found.dtype == np.float32
    torch.testing.assert_close(torch.from_numpy(found), expected.float(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dimensions", [None, 1, 32])
def test_shortened_vectors_have_length_one(dimensions: int | None) -> None:
    before = HIDDEN.copy()
    found = shorten_and_normalize(HIDDEN, dimensions, True)
    expected = torch.nn.functional.normalize(torch.from_numpy(HIDDEN[:, :dimensions]).double(), dim=-1)
    torch.testing.assert_close(torch.from_numpy(found), expected.float(), rtol=1e-6, atol=1e-7)
    assert np.array_equal(shorten_and_normalize(HIDDEN, dimensions, False), HIDDEN[:, :dimensions])
    assert np.array_equal(HIDDEN, before), "who computed them may use them again"


def test_zeros_stay_zeros() -> None:
    assert not shorten_and_normalize(np.zeros((2, 8), np.float32), None, True).any()


def test_the_bits_are_those_of_the_text_alone() -> None:
    for first, last in [(0, 5), (3, 40), (17, 300)]:
        alone = HIDDEN[first:last].copy()
        assert np.array_equal(pool(HIDDEN[first:last], "mean"), pool(alone, "mean"))
        whole, part = (shorten_and_normalize(hidden, None, True) for hidden in (HIDDEN, alone))
        assert np.array_equal(whole[first:last], part)
