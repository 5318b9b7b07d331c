"""The rotation of rows that are rounded to 8 bits."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.twins.rotation import rotated, rotated_back, rotation_stages, windows_of


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


@pytest.mark.parametrize(
    ("num_inputs", "size", "firsts"),
    [
        (2816, 4, [0, 4, 7]),
        (3328, 4, [0, 4, 8, 9]),
        (4864, 4, [0, 4, 8, 12, 15]),
        (5632, 12, [0, 10]),
        (9728, 20, [0, 18]),
        (11008, 24, [0, 19]),
        (18944, 20, [0, 20, 40, 54]),
    ],
)
def test_what_no_stage_reaches_meets_in_windows(num_inputs: int, size: int, firsts: list[int]) -> None:
    windows = windows_of(num_inputs)
    assert windows is not None
    assert (windows.size, windows.firsts) == (size, firsts)
    assert (firsts[-1] + size) * windows.stride == num_inputs


@pytest.mark.parametrize("num_inputs", [32, 896, 3072, 4096, 14336])
def test_a_lone_factor_2_has_no_windows(num_inputs: int) -> None:
    assert windows_of(num_inputs) is None


@given(num_slots=st.integers(1, 200), seed=st.integers(0, 99))
def test_it_is_orthogonal_and_can_be_undone(num_slots: int, seed: int) -> None:
    rows = np.random.default_rng(seed).standard_normal((5, 16 * num_slots))
    before = rows.copy()
    there = rotated(rows)
    np.testing.assert_allclose(rotated_back(there), rows, atol=1e-6)
    np.testing.assert_allclose(there @ there.T, rows @ rows.T, atol=1e-4 * num_slots)
    assert np.array_equal(rows, before)
    if windows_of(16 * num_slots) is None:
        np.testing.assert_allclose(rotated(there), rows, atol=1e-6)


@pytest.mark.parametrize(
    ("num_inputs", "most"),
    [
        *((576, 1 / 9), (1536, 1 / 12), (2048, 1 / 16), (8192, 1 / 32), (14336, 5 / 112)),
        *((2816, 1 / 16), (4864, 1 / 16), (5632, 1 / 24), (9728, 3 / 80), (11008, 1 / 24), (18944, 0.42 / 8)),
    ],
)
def test_one_large_value_is_shared_out(num_inputs: int, most: float) -> None:
    """Of the widths that models have, some with prime factors like 43."""
    rows = np.zeros((64, num_inputs), np.float32)
    places = np.random.default_rng(0).choice(num_inputs, 64, replace=False)
    rows[np.arange(64), places] = 1
    assert np.abs(rotated(rows)).max() < most * 1.01
    assert rotated(rows).dtype == np.float32
