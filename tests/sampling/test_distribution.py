"""One draw by the inverse of a distribution, at its borders."""

from __future__ import annotations

import numpy as np
import pytest

from quire.sampling.distribution import MostLikely, draw_one, token_weights


@pytest.mark.parametrize(("uniform", "drawn"), [(0.0, 1), (0.249, 1), (0.25, 3), (0.5, 3), (1 - 2**-53, 3)])
def test_what_weighs_nothing_is_never_drawn_and_a_border_belongs_to_what_follows(uniform: float, drawn: int) -> None:
    assert draw_one(np.array([0.0, 0.5, 0.0, 1.5, 0.0]), uniform) == drawn


def test_weights_are_relative_to_the_largest_and_flatter_the_hotter() -> None:
    row = np.array([1.0, 3.0, -np.inf], np.float32)
    weights = token_weights([row, row], [3.0, 3.0], [0.5, 2.0])
    np.testing.assert_allclose(weights, [[np.exp(-4), 1, 0], [np.exp(-1), 1, 0]])


def test_of_some_rows() -> None:
    best = MostLikely([7, 8, 9], [0.5, 1.5, 2.5])
    assert best.of_rows([0, 2]) == MostLikely([7, 9], [0.5, 2.5])
    assert best.of_rows([0, 1, 2]) == best
