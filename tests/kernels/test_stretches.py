"""Rows of many inputs, multiplied a stretch of these at a time (csrc/stretches.h): the bits of all inputs at once."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.forced import SETS, assert_added_and_rounded_once, forced
from tests.kernels.test_dense_linear import DTYPES, draw, packed
from tests.kernels.test_quantized_linear import make_rounded, rounded

from quire.core.native import has_native_module
from quire.core.quantization import ROUNDINGS
from quire.kernels import native_module
from quire.kernels.native_linear import linear
from quire.kernels.native_module import module
from quire.kernels.panels import QuantizedPanels

pytestmark = pytest.mark.skipif(not has_native_module(), reason="the native kernels were not built")

MOST_ROWS_AT_ONCE = 16
"""So few are multiplied with all inputs at once, however many these are."""


def in_stretches(num_rows: int, row_bytes: int, num_inputs: int, num_outputs: int) -> bool:
    kept = module().bytes_of_kept_sums(
        num_rows=num_rows, row_bytes=row_bytes, num_inputs=num_inputs, num_outputs=num_outputs
    )
    return bool(kept > 0)


def rotated_weight(num_outputs: int, num_inputs: int) -> tuple[QuantizedPanels, torch.Tensor]:
    floats = np.random.default_rng(num_inputs).normal(0, 0.5, (num_outputs, num_inputs)).astype(np.float32)
    return make_rounded(ROUNDINGS["int8"], floats)


def in_sixteens(x: torch.Tensor) -> list[slice]:
    return [slice(first, first + MOST_ROWS_AT_ONCE) for first in range(0, len(x), MOST_ROWS_AT_ONCE)]


def test_when_they_are() -> None:
    assert in_stretches(17, 8196, 2049, 2049)
    assert not in_stretches(MOST_ROWS_AT_ONCE, 8196, 2049, 2049)
    assert not in_stretches(17, 8192, 2048, 2048)
    assert not in_stretches(17, 8196, 2049, 2050)


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("num_inputs", [4161, 9000])  # the last tile of both is a part of one
def test_floats_as_in_float64_and_with_the_bits_of_rows_alone(
    instruction_set: str, dtype: torch.dtype, num_inputs: int
) -> None:
    x, values = draw(75, num_inputs, 53, dtype)
    weight = packed(values)
    assert in_stretches(75, weight.memory.shape[1] * dtype.itemsize, num_inputs, 53)
    output = torch.empty(75, 53)
    forced(instruction_set, linear, x, weight, None, output)
    torch.testing.assert_close(output.double(), x.double() @ values.double().T, rtol=0, atol=1e-2)
    for rows in in_sixteens(x):
        alone = torch.empty(len(x[rows]), 53)
        forced(instruction_set, linear, x[rows], weight, None, alone)
        assert torch.equal(alone, output[rows])


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("num_inputs", [8224, 9216])  # in whole tiles, and with half a one
def test_bytes_as_in_float64_and_with_the_bits_of_rows_alone(
    instruction_set: str, dtype: torch.dtype, num_inputs: int
) -> None:
    weight, floats = rotated_weight(53, num_inputs)
    x = torch.randn(75, num_inputs, generator=torch.Generator().manual_seed(1)).to(dtype)
    assert in_stretches(75, num_inputs, num_inputs, 53)
    output = torch.empty(75, 53)
    forced(instruction_set, linear, x, weight, None, output)
    torch.testing.assert_close(
        output.double(), rounded(x.double(), weight.layout) @ floats.double().T, rtol=0, atol=0.15
    )
    for rows in in_sixteens(x):
        alone = torch.empty(len(x[rows]), 53)
        forced(instruction_set, linear, x[rows], weight, None, alone)
        assert torch.equal(alone, output[rows])


@settings(max_examples=30)
@given(
    num_rows=st.integers(17, 70),
    num_outputs=st.integers(1, 100),
    dtype=st.sampled_from(DTYPES),
    has_bias=st.booleans(),
    in_bytes=st.booleans(),
    instruction_set=st.sampled_from(SETS or ("none",)),
)
def test_results_are_added_to_what_is_there_and_rounded_once(  # type: ignore[no-untyped-def]
    num_rows, num_outputs, dtype, has_bias, in_bytes, instruction_set
) -> None:
    num_inputs = 8224
    x, values = draw(num_rows, num_inputs, num_outputs, dtype)
    weight = rotated_weight(num_outputs, num_inputs)[0] if in_bytes else packed(values)
    bias = torch.randn(num_outputs).to(dtype) if has_bias else None
    memory = torch.randn(num_rows, num_outputs + 2).to(dtype)

    def multiply(output: torch.Tensor, adds: bool) -> None:
        forced(instruction_set, linear, x, weight, bias, output, adds=adds)  # type: ignore[arg-type]

    assert_added_and_rounded_once(multiply, memory, 1)


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("in_bytes", [False, True])
def test_threads_wait_for_each_other_between_two(instruction_set: str, in_bytes: bool) -> None:
    x, values = draw(150, 8224, 200, torch.bfloat16)
    weight = rotated_weight(200, 8224)[0] if in_bytes else packed(values)
    threads = native_module.thread_count()
    found = []
    try:
        for num_threads in (1, 2, 2, 2):
            native_module.use_num_threads(num_threads)
            found.append(forced(instruction_set, linear, x, weight))  # type: ignore[arg-type]
    finally:
        native_module.use_num_threads(threads)
    assert all(torch.equal(y, found[0]) for y in found)
