"""Native products of floats against float64, with every instruction set; each row's bits are its own."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.kernels.forced import (
    SETS,
    assert_added_and_rounded_once,
    assert_let_through_and_rounded_once,
    forced,
    rows_of,
)
from tests.kernels.torch_arrays import as_array, as_torch

from quire.core.native import has_native_module
from quire.kernels import native_module, native_rows
from quire.kernels.dtype import dtype_of
from quire.kernels.native_linear import DensePanels, empty_dense, linear, linear_gated, pack_, weight_rows

pytestmark = pytest.mark.skipif(not has_native_module(), reason="the native kernels were not built")

DTYPES = [torch.float32, torch.bfloat16]


def packed(values: torch.Tensor) -> DensePanels:
    weight = empty_dense(*values.shape, dtype_of(values.dtype))
    weight.memory[: weight.num_outputs, : weight.num_inputs] = as_array(values)
    return pack_(weight)


def draw(num_rows: int, num_inputs: int, num_outputs: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(num_rows)
    x = torch.randn(num_rows, num_inputs, generator=generator)
    return x.to(dtype), torch.randn(num_outputs, num_inputs, generator=generator).to(dtype)


@given(
    num_rows=st.integers(0, 40),
    num_inputs=st.integers(1, 200),
    num_outputs=st.integers(1, 130),
    dtype=st.sampled_from(DTYPES),
    output_dtype=st.sampled_from(DTYPES),
    bias_dtype=st.sampled_from([None, *DTYPES]),
    instruction_set=st.sampled_from(SETS or ("none",)),
)
def test_as_in_float64_and_nothing_else_is_written(  # type: ignore[no-untyped-def]
    num_rows, num_inputs, num_outputs, dtype, output_dtype, bias_dtype, instruction_set
) -> None:
    x, weight = draw(num_rows, num_inputs, num_outputs, dtype)
    bias = None if bias_dtype is None else torch.randn(num_outputs).to(bias_dtype)
    memory = torch.full((num_rows, num_outputs + 2), torch.nan, dtype=output_dtype)
    # Rows of a wider matrix: they need not lie next to each other.
    apart = torch.full((num_rows, num_inputs + 3), torch.nan, dtype=dtype)
    apart[:, :num_inputs] = x
    forced(instruction_set, linear, apart[:, :num_inputs], packed(weight), bias, memory[:, 1:-1])
    assert memory[:, [0, -1]].isnan().all()
    expected = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    tolerance = {
        "rtol": 0 if output_dtype == torch.float32 else torch.finfo(output_dtype).eps,
        "atol": torch.finfo(torch.float32).eps * 8 * num_inputs,
    }
    torch.testing.assert_close(memory[:, 1:-1].double(), expected, **tolerance)


@given(
    num_rows=st.integers(0, 70),
    num_inputs=st.integers(1, 130),
    num_outputs=st.integers(1, 130),
    dtype=st.sampled_from(DTYPES),
    has_bias=st.booleans(),
    instruction_set=st.sampled_from(SETS or ("none",)),
)
def test_results_are_added_to_what_is_there_and_rounded_once(  # type: ignore[no-untyped-def]
    num_rows, num_inputs, num_outputs, dtype, has_bias, instruction_set
) -> None:
    x, values = draw(num_rows, num_inputs, num_outputs, dtype)
    weight = packed(values)
    bias = torch.randn(num_outputs).to(dtype) if has_bias else None
    memory = torch.randn(num_rows, num_outputs + 2).to(dtype)

    def multiply(output: torch.Tensor, adds: bool) -> None:
        forced(instruction_set, linear, x, weight, bias, output, adds=adds)

    assert_added_and_rounded_once(multiply, memory, 1)


@given(
    num_rows=st.integers(0, 70),
    num_inputs=st.integers(1, 200),
    width=st.one_of(st.integers(1, 70), st.sampled_from([16, 32, 48, 96])),
    dtype=st.sampled_from(DTYPES),
    kind=st.sampled_from(sorted(native_rows.GATES)),
    instruction_set=st.sampled_from(SETS or ("none",)),
)
def test_gated_at_once_as_one_after_the_other(  # type: ignore[no-untyped-def]
    num_rows, num_inputs, width, dtype, kind, instruction_set
) -> None:
    x, values = draw(num_rows, num_inputs, 2 * width, dtype)
    weight = packed(values)

    def multiply(output_dtype: torch.dtype) -> torch.Tensor:
        output = torch.empty(num_rows, 2 * width, dtype=output_dtype)
        return forced(instruction_set, linear, x, weight, output=output)

    found = forced(instruction_set, linear_gated, x, weight, kind)
    assert_let_through_and_rounded_once(found, multiply, kind, rows_of(instruction_set))


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("num_threads", [1, 2])
def test_many_rows_gated_at_once(instruction_set: str, num_threads: int) -> None:
    """More than one block of rows for each thread; with the bits of few rows."""
    x, values = draw(301, 160, 96, torch.bfloat16)
    weight = packed(values)
    one_by_one = [forced(instruction_set, linear_gated, row, weight, "silu") for row in x.split(1)]
    threads = native_module.thread_count()
    try:
        native_module.use_num_threads(num_threads)
        assert torch.equal(forced(instruction_set, linear_gated, x, weight, "silu"), torch.cat(one_by_one))
    finally:
        native_module.use_num_threads(threads)


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_rows_bits_are_its_own(instruction_set: str, dtype: torch.dtype) -> None:
    """Alone, with neighbours, in another tile, in another block of rows; one thread or two."""
    x, values = draw(301, 577, 203, dtype)
    weight = packed(values)
    together = forced(instruction_set, linear, x, weight)
    threads = native_module.thread_count()
    try:
        for num_threads in (1, 2):
            native_module.use_num_threads(num_threads)
            for first, last in ((0, 1), (2, 5), (3, 12), (298, 301), (40, 300)):
                some = forced(instruction_set, linear, x[first:last], weight)
                assert torch.equal(some, together[first:last])
    finally:
        native_module.use_num_threads(threads)


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (37, 63), (64, 64)])
def test_rows_come_back_as_they_were(instruction_set: str, dtype: torch.dtype, shape: tuple[int, int]) -> None:
    values = torch.randn(shape).to(dtype)
    indices = torch.tensor([shape[0] - 1, 0, 0, shape[0] // 2])
    found = forced(instruction_set, weight_rows, packed(values), indices, dtype_of(dtype))
    assert torch.equal(as_torch(found), values[indices])


def test_values_that_are_not_finite_stay_in_their_row_and_are_seen() -> None:
    x, values = draw(5, 65, 33, torch.bfloat16)
    good = linear(x, packed(values))
    x[2, 64] = torch.inf
    found = linear(x, packed(values))
    assert not found[2].isfinite().any()
    assert torch.equal(found[[0, 1, 3, 4]], good[[0, 1, 3, 4]])
