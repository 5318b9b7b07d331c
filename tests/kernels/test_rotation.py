"""The rotation of rows that are rounded to 8 bits."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.kernels.rotation import rotated, rotation_stages


@pytest.mark.parametrize(
    ("num_inputs", "radices"),
    [
        (32, []),
        (96, [6]),
        (384, [4, 6]),
        (576, [4, 3, 3]),
        (640, [4, 5]),
        (896, [4, 7]),
        (1536, [4, 4, 6]),
        (2048, [4, 4, 4]),
        (3072, [4, 4, 4, 3]),
    ],
)
def test_stages_reach_as_far_as_small_factors_go(num_inputs: int, radices: list[int]) -> None:
    stages = list(rotation_stages(num_inputs))
    assert [radix for radix, _ in stages] == radices
    assert [stride for _, stride in stages] == [16 * math.prod(radices[:place]) for place in range(len(radices))]


@given(num_slots=st.integers(1, 100), seed=st.integers(0, 99))
def test_it_is_orthogonal_and_its_own_inverse(num_slots: int, seed: int) -> None:
    rows = np.random.default_rng(seed).standard_normal((5, 16 * num_slots))
    there = rotated(rows)
    np.testing.assert_allclose(rotated(there), rows, atol=1e-6)
    np.testing.assert_allclose(there @ there.T, rows @ rows.T, atol=1e-4 * num_slots)


@pytest.mark.parametrize("num_inputs", [576, 1536, 2048])
def test_one_large_value_is_shared_out(num_inputs: int) -> None:
    rows = np.eye(num_inputs, dtype=np.float32)
    assert np.abs(rotated(rows)).max() < 0.13
    assert rotated(rows).dtype == np.float32
