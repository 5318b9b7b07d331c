"""Sampling in numpy holds the weights of some rows at once."""

from __future__ import annotations

import numpy as np
import pytest

from quire.core.sampling_params import SamplingParams
from quire.sampling.numpy_backend import _CHUNK_ELEMENTS, NumpySampling
from quire.sampling.sampling_row import SamplingRow


@pytest.mark.parametrize("vocab_size", [_CHUNK_ELEMENTS // 2, _CHUNK_ELEMENTS + 1])
def test_more_rows_than_are_held_at_once_draw_their_own(vocab_size: int) -> None:
    logits = np.zeros((5, vocab_size), np.float32)
    logits[range(5), range(5)] = 50
    rows = [SamplingRow(SamplingParams(), seed, [0], 1, []) for seed in range(5)]
    assert NumpySampling(vocab_size).draw(list(logits), [50.0] * 5, rows) == list(range(5))
