"""Rounded weights are as near as their bits allow, and a layer of them multiplies like one of floats."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.kernels.torch_arrays import as_torch
from tests.quantization.stored_weights import FloatWeight
from tests.twins.rotation import rotated, rotated_back
from tests.twins.rounding import round_rows

from quire.core.native import has_native_module
from quire.core.quantization import ROUNDINGS, Rounding
from quire.kernels.cpu_ops import CpuOps
from quire.kernels.dtype import DType
from quire.kernels.native_linear import DensePanels
from quire.quantization.select import select_method


def restored(rows: np.ndarray, rounding: Rounding, size: int) -> np.ndarray:
    found = round_rows(rows, rounding, size)
    groups = found.codes.reshape(len(rows), -1, size).astype(np.float64) - found.zero
    values = groups * found.scale.astype(np.float64)[..., None]
    if found.minimum is not None:
        values += found.minimum.astype(np.float64)[..., None]
    return rotated_back(values.reshape(rows.shape)) if found.rotated else values.reshape(rows.shape)


@given(
    name=st.sampled_from(sorted(ROUNDINGS)),
    num_rows=st.integers(1, 5),
    num_groups=st.integers(1, 4),
    size=st.sampled_from([1e-3, 1.0, 50.0]),
    shift=st.sampled_from([0.0, 3.0]),
    seed=st.integers(0, 999),
)
def test_no_weight_is_off_by_more_than_a_step(  # type: ignore[no-untyped-def]
    name, num_rows, num_groups, size, shift, seed
) -> None:
    rng, rounding = np.random.default_rng(seed), ROUNDINGS[name]
    group_size = min(rounding.group_size, 256)
    rows = (size * (rng.standard_normal((num_rows, num_groups * group_size)) + shift)).astype(np.float32)

    def in_groups(values: np.ndarray) -> np.ndarray:
        rotates = rounding.rotated and num_groups == 1
        return (rotated(values) if rotates else values).reshape(num_rows, -1, group_size)

    groups = in_groups(rows)
    largest = np.abs(groups).max(-1)
    # A symmetric code of 4 bits reaches 8 steps on one side, and 7 on the other.
    steps = 127 if rounding.bits == 8 else 7
    step = (groups.max(-1) - groups.min(-1)) / 15 if rounding.has_minimum else largest / steps
    # The share of the range that may be given up for 4 bits: of all values of a group together, so of one no more than
    # what all of them would lose without.
    given_up = 0.0 if rounding.bits == 8 else 0.5 * (np.sqrt(group_size) - 1)
    limit = step * (0.5 + given_up) + largest * 2e-3
    error = np.abs(in_groups(restored(rows, rounding, group_size)) - groups).max(-1)
    assert (error <= limit).all()


@pytest.mark.parametrize("name", sorted(ROUNDINGS))
def test_a_group_of_one_value_keeps_it(name: str) -> None:
    rows = np.repeat(np.array([[0.0], [0.5], [-2.0]], np.float32), 256, axis=1)
    np.testing.assert_allclose(restored(rows, ROUNDINGS[name], 128), rows, atol=1e-3 * 2)


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("int8", 0.009),
        ("int8-g32", 0.006),
        ("int4", 0.09),
        ("int4-g128", 0.12),
        ("int4-symmetric", 0.1),
        ("int4-symmetric-g128", 0.13),
    ],
)
def test_error_of_normal_weights(name: str, most: float) -> None:
    rows = np.random.default_rng(0).standard_normal((64, 512)).astype(np.float32)
    rounding = ROUNDINGS[name]
    size = rounding.group_of(512)
    assert size is not None
    assert np.sqrt(np.square(restored(rows, rounding, size) - rows).mean()) < most


def test_groups_divide_a_row_into_the_largest_that_are_allowed() -> None:
    assert ROUNDINGS["int8-g128"].group_of(1536) == 128
    assert ROUNDINGS["int8-g128"].group_of(576) == 96
    assert ROUNDINGS["int8"].group_of(576) == 576
    assert ROUNDINGS["int8"].group_of(18944) == 18944
    assert ROUNDINGS["int8"].group_of(65536) == 65536
    assert ROUNDINGS["int8"].group_of(2 * 65536) == 16384
    assert ROUNDINGS["int4"].group_of(96) == 32
    assert ROUNDINGS["int4"].group_of(40) is None
    assert ROUNDINGS["int8"].group_of(16) is None


@pytest.mark.skipif(not has_native_module(), reason="the native kernels were not built")
@pytest.mark.parametrize(
    ("quantization", "most"),
    [("int8", 0.012), ("int8-g64", 0.01), ("int4", 0.12), ("int4-g64", 0.14), ("int4-symmetric-g64", 0.16)],
)
def test_a_layer_is_near_that_of_floats(quantization: str, most: float) -> None:
    generator = torch.Generator().manual_seed(0)
    parts = [torch.randn(num_outputs, 96, generator=generator) for num_outputs in (40, 8, 24)]
    x = torch.randn(9, 96, generator=generator)
    method = select_method(CpuOps(), DType.FLOAT32, quantization)  # type: ignore[arg-type]
    found = method.apply(x, method.load([FloatWeight(part) for part in parts], DType.FLOAT32), None)
    expected = x @ torch.cat(parts).T
    assert (found - expected).square().mean().sqrt() < most * expected.square().mean().sqrt()
    table = method.load_table(FloatWeight(parts[0]), DType.FLOAT32)
    assert (as_torch(table.rows(torch.arange(40))) - parts[0]).square().mean().sqrt() < 0.01


@pytest.mark.skipif(not has_native_module(), reason="the native kernels were not built")
def test_inputs_that_are_no_whole_groups_stay_floats() -> None:
    method = select_method(CpuOps(), DType.FLOAT32, "int4")
    (segment,) = method.load([FloatWeight(torch.randn(8, 40))], DType.FLOAT32)
    assert isinstance(segment.weight, DensePanels)
