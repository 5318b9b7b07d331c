"""Weights rounded straight into panels: the bits of tests/twins/rounding.py, for every instruction set and number of threads."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.twins.panels import fill_panels, layout_of
from tests.twins.rounding import round_rows

from quire.core.arrays import Float32Array
from quire.core.native import has_native_module
from quire.core.quantization import ROUNDINGS, Rounding
from quire.kernels import native_module
from quire.kernels.panels import PanelLayout, round_to_panels

pytestmark = pytest.mark.skipif(not has_native_module(), reason="the native kernels were not built")

POISON = 0xA5


def expected_and_found(
    rows: Float32Array, rounding: Rounding, *, inputs_rotated: bool = False
) -> tuple[np.ndarray, np.ndarray, PanelLayout]:
    """By numpy, and by the kernel in poisoned memory, with a panel before and behind that must stay as they are."""
    size = rounding.group_of(rows.shape[1])
    assert size is not None
    codes = round_rows(rows, rounding, size, inputs_rotated=inputs_rotated)
    layout = layout_of(codes, len(rows))
    expected = np.zeros((layout.num_panels, layout.panel_bytes), np.uint8)
    fill_panels(expected, layout, codes)
    memory = np.full((layout.num_panels + 2, layout.panel_bytes), POISON, np.uint8)
    round_to_panels(memory[1:-1], layout, rows)
    assert (memory[[0, -1]] == POISON).all()
    return expected, memory[1:-1], layout


@pytest.mark.parametrize("name", sorted(ROUNDINGS))
@given(
    num_rows=st.integers(1, 70),
    num_inputs=st.integers(1, 12).map(lambda units: 32 * units),
    exponent=st.integers(-9, 3),
    shift=st.sampled_from([0.0, 3.0, -40.0]),
    seed=st.integers(0, 9999),
)
def test_the_bits_are_numpys(  # type: ignore[no-untyped-def]
    instruction_set, name, num_rows, num_inputs, exponent, shift, seed
) -> None:
    """Scales below the smallest normal float16, and zeros, included."""
    rng = np.random.default_rng(seed)
    rows = ((rng.standard_normal((num_rows, num_inputs)) + shift) * 10.0**exponent).astype(np.float32)
    rows[rng.integers(0, num_rows), : num_inputs // 2] = 0
    expected, found, layout = expected_and_found(rows, ROUNDINGS[name])
    if not layout.rotated:
        np.testing.assert_array_equal(found, expected)
        return
    # Sums of another order: a code, or the last place of a scale, may be the neighbouring one.
    header = slice(layout.header_offset, layout.header_offset + layout.num_blocks * layout.header_bytes)
    codes = slice(0, num_inputs * 16)
    assert np.abs(found[:, codes].astype(int) - expected[:, codes]).max() <= 1
    assert (
        np.abs(found[:, header].copy().view(np.int16).astype(int) - expected[:, header].copy().view(np.int16)).max()
        <= 1
    )


@pytest.mark.parametrize("name", sorted(ROUNDINGS))
@pytest.mark.parametrize("value", [0.0, 1.0, -2.5, 1e-7, 3e38])
def test_equal_values_and_ends_of_the_range(instruction_set: str, name: str, value: float) -> None:
    """Of values with a scale that no float16 holds nothing sensible is left; the bits are numpy's all the same."""
    with np.errstate(all="ignore"):
        expected, found, layout = expected_and_found(np.full((17, 96), value, np.float32), ROUNDINGS[name])
    if not layout.rotated or value < 1e38:
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", sorted(ROUNDINGS))
def test_the_bits_do_not_depend_on_the_number_of_threads(instruction_set: str, name: str) -> None:
    rows = np.random.default_rng(1).standard_normal((200, 576)).astype(np.float32)
    before, found = native_module.thread_count(), []
    try:
        for num_threads in (1, 2, 3):
            native_module.use_num_threads(num_threads)
            found.append(expected_and_found(rows, ROUNDINGS[name])[1])
    finally:
        native_module.use_num_threads(before)
    assert all(np.array_equal(found[0], other) for other in found[1:])


def test_rows_that_are_not_contiguous() -> None:
    rows = np.random.default_rng(2).standard_normal((96, 40)).astype(np.float32).T
    assert not rows.flags.c_contiguous
    expected, found, _ = expected_and_found(rows, ROUNDINGS["int4"])
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("num_inputs", [32, 576, 1536])
def test_rows_that_come_rotated_are_rounded_as_they_are(instruction_set: str, num_inputs: int) -> None:
    rows = np.random.default_rng(num_inputs).standard_normal((37, num_inputs), np.float32)
    expected, found, layout = expected_and_found(rows, ROUNDINGS["int8"], inputs_rotated=True)
    assert layout.rotated
    np.testing.assert_array_equal(found, expected)
