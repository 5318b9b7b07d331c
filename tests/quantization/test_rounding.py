"""Rounded weights are as near as their bits allow, and a layer of them multiplies like one of floats."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.quantization.stored_weights import FloatWeight

from quire.core.native import has_native_module
from quire.kernels.cpu_ops import CpuOps
from quire.kernels.dtype import DType
from quire.kernels.native_linear import DensePanels
from quire.kernels.torch_on_arrays import as_torch
from quire.quantization.rounding import GROUP_SIZE, round_rows
from quire.quantization.select import select_method


def restored(rows: np.ndarray, bits: int) -> np.ndarray:
    found = round_rows(rows, bits)
    groups = found.codes.reshape(len(rows), -1, GROUP_SIZE).astype(np.float64) - found.zero
    values = groups * found.scale.astype(np.float64)[..., None]
    if found.minimum is not None:
        values += found.minimum.astype(np.float64)[..., None]
    return values.reshape(rows.shape)


@given(
    bits=st.sampled_from([4, 8]),
    num_rows=st.integers(1, 5),
    num_groups=st.integers(1, 4),
    size=st.sampled_from([1e-3, 1.0, 50.0]),
    shift=st.sampled_from([0.0, 3.0]),
    seed=st.integers(0, 999),
)
def test_no_weight_is_off_by_more_than_a_step(  # type: ignore[no-untyped-def]
    bits, num_rows, num_groups, size, shift, seed
) -> None:
    rng = np.random.default_rng(seed)
    rows = (size * (rng.standard_normal((num_rows, num_groups * GROUP_SIZE)) + shift)).astype(np.float32)
    groups = rows.reshape(num_rows, -1, GROUP_SIZE)
    step = np.abs(groups).max(-1) / 127 if bits == 8 else (groups.max(-1) - groups.min(-1)) / 15
    # Half a step, the share of the range that was given up for 4 bits, and a scale and minimum of eleven bits.
    limit = step * (0.5 if bits == 8 else 0.5 + 15 * 0.15 / 2) + np.abs(groups).max(-1) * 2e-3
    error = np.abs(restored(rows, bits) - rows).reshape(groups.shape).max(-1)
    assert (error <= limit).all()


@pytest.mark.parametrize("bits", [4, 8])
def test_a_group_of_one_value_keeps_it(bits: int) -> None:
    rows = np.repeat(np.array([[0.0], [0.5], [-2.0]], np.float32), 2 * GROUP_SIZE, axis=1)
    np.testing.assert_allclose(restored(rows, bits), rows, atol=1e-3 * 2)


@pytest.mark.parametrize(("bits", "most"), [(8, 0.006), (4, 0.09)])
def test_error_of_normal_weights(bits: int, most: float) -> None:
    rows = np.random.default_rng(0).standard_normal((64, 512)).astype(np.float32)
    assert np.sqrt(np.square(restored(rows, bits) - rows).mean()) < most


@pytest.mark.skipif(not has_native_module(), reason="the native kernels were not built")
@pytest.mark.parametrize(("quantization", "most"), [("int8", 0.01), ("int4", 0.12)])
def test_a_layer_is_near_that_of_floats(quantization: str, most: float) -> None:
    generator = torch.Generator().manual_seed(0)
    parts = [torch.randn(num_outputs, 96, generator=generator) for num_outputs in (40, 8, 24)]
    x = torch.randn(9, 96, generator=generator)
    method = select_method(CpuOps(), DType.FLOAT32, quantization)  # type: ignore[arg-type]
    found = method.apply(x, method.load([FloatWeight(part) for part in parts], DType.FLOAT32), None)
    expected = x @ torch.cat(parts).T
    assert (found - expected).square().mean().sqrt() < most * expected.square().mean().sqrt()
    table = method.load_table(FloatWeight(parts[0]), DType.FLOAT32)
    assert (as_torch(table.rows(torch.arange(40))) - parts[0]).abs().max() < 0.02


@pytest.mark.skipif(not has_native_module(), reason="the native kernels were not built")
def test_inputs_that_are_no_whole_groups_stay_floats() -> None:
    method = select_method(CpuOps(), DType.FLOAT32, "int4")
    (segment,) = method.load([FloatWeight(torch.randn(8, 40))], DType.FLOAT32)
    assert isinstance(segment.weight, DensePanels)
