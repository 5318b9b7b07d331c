"""Sums, products with a number and rows of tables, natively (csrc/row_ops.cpp): what models do between the other kernels."""

from __future__ import annotations

from typing import TypeVar

from quire.kernels.dtype import DType, dtype_of, is_bfloat16
from quire.kernels.native_module import current_program, instruction_sets, module, thread_count
from quire.kernels.tensor import Tensor

T = TypeVar("T", bound=Tensor)


def add(x: T, z: T) -> T:
    """x + z, each [T, D] (csrc/row_ops.cpp)."""
    assert x.shape == z.shape
    assert x.dtype == z.dtype
    assert x.stride()[1] == z.stride()[1] == 1
    num_tokens, width = x.shape
    y = x.new_empty((num_tokens, width))
    module().add(
        current_program(by_token=True),
        instruction_sets()[0],
        (x.data_ptr(), x.stride()[0], 0),
        (z.data_ptr(), z.stride()[0], 0),
        (y.data_ptr(), width, 0),
        num_tokens,
        width,
        is_bfloat16(x),
        thread_count(),
    )
    return y


def scale(x: T, factor: float) -> T:
    """x * factor, [T, D] (csrc/row_ops.cpp)."""
    assert x.stride()[1] == 1
    num_tokens, width = x.shape
    y = x.new_empty((num_tokens, width))
    out = (y.data_ptr(), width, 0)
    num_threads, bfloat16 = thread_count(), is_bfloat16(x)
    module().scale(
        current_program(by_token=True),
        instruction_sets()[0],
        (x.data_ptr(), x.stride()[0], 0),
        out,
        num_tokens,
        width,
        factor,
        bfloat16,
        num_threads,
    )
    return y


def gather(table: T, indices: Tensor) -> T:
    """Rows of a table [V, D] by int64 [T] -> [T, D] (csrc/row_ops.cpp)."""
    assert table.stride()[1] == 1
    assert dtype_of(indices.dtype) == DType.INT64
    assert indices.is_contiguous()
    num_tokens, width = indices.shape[0], table.shape[1]
    y = table.new_empty((num_tokens, width))
    module().gather(
        current_program(),
        instruction_sets()[0],
        table.data_ptr(),
        table.stride()[0],
        indices.data_ptr(),
        y.data_ptr(),
        num_tokens,
        width,
        is_bfloat16(table),
        thread_count(),
    )
    return y
