"""Shapes that do not fit together are refused before a kernel reads or writes beside an array."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from quire.core.native import has_native_module
from quire.kernels.array import Array
from quire.kernels.dtype import DType
from quire.kernels.native_attention import paged_attention, write_kv
from quire.kernels.native_linear import empty_dense, linear, pack_
from quire.kernels.native_rows import rms_norm
from quire.kernels.native_sketch import FINE, empty_sketch, sketch_rows_
from quire.kernels.native_steps import StepInputs

pytestmark = pytest.mark.skipif(not has_native_module(), reason="the native kernels were not built")

HEAD = 16


def ones(*shape: int) -> Array:
    return Array(np.ones(shape, np.float32), DType.FLOAT32)


def ids(values: npt.ArrayLike) -> Array:
    return Array(np.array(values, np.int64), DType.INT64)


def apart(values: list[int]) -> Array:
    """The same numbers, each with another one behind it."""
    return Array(np.repeat(np.array(values, np.int64), 2)[::2], DType.INT64)


def attend(
    num_heads: int = 2,
    num_kv_heads: int = 2,
    block_tables: Array | None = None,
    query_starts: Array | None = None,
    context_lens: Array | None = None,
) -> None:
    """Two rows of one token each."""
    paged_attention(
        ones(2, num_heads, HEAD),
        ones(2, 16, num_kv_heads, HEAD),
        ones(2, 16, num_kv_heads, HEAD),
        ids([[0], [1]]) if block_tables is None else block_tables,
        ids([0, 1, 2]) if query_starts is None else query_starts,
        ids([1, 1]) if context_lens is None else context_lens,
        scale=1.0,
    )


def write(num_queries: int = 1, query_head: int = HEAD, half: int = HEAD // 2) -> None:
    """One token's K and V, rotated."""
    rotated = (ones(num_queries, 1, query_head), ones(num_queries, half), ones(num_queries, half))
    write_kv(ones(1, 1, HEAD), ones(1, 1, HEAD), ones(2, 16, 1, HEAD), ones(2, 16, 1, HEAD), ids([0]), rotated=rotated)


def add_normed(x: Array, residual: Array) -> None:
    rms_norm(x, ones(8), 1e-5, residual)


def multiply(x: Array, panels: Array | None = None) -> None:
    linear(x, pack_(empty_dense(16, 8, DType.FLOAT32)), output=ones(2, 16), panels=panels)


def sketch(first: int, num_rows: int, width: int) -> None:
    sketch_rows_(empty_sketch(40, np.arange(FINE), 64), first, ones(num_rows, width))


def fill(num_tables: int) -> None:
    """One KV group, of a row with room for two blocks."""
    inputs = StepInputs(ids([0]), ids([0]), ids([0, 0]), ids([0]), ids([0]), [(ids([[0, 0]]), ids([0]))], 16)
    tokens, table = np.zeros((1, 32), np.int64), np.zeros((1, 2), np.int64)
    inputs.fill(tokens, [table] * num_tables, [0], [0], [1])


FITTING: list[Callable[[], None]] = [
    attend,
    write,
    lambda: add_normed(ones(2, 8), ones(2, 8)),
    lambda: multiply(ones(2, 8), ids([1, 0])),
    lambda: sketch(32, 8, 64),
    lambda: fill(1),
]
UNFIT: dict[str, Callable[[], None]] = {
    "heads that KV heads do not divide": lambda: attend(num_heads=3),
    "fewer heads than KV heads": lambda: attend(num_heads=1),
    "no heads": lambda: attend(num_heads=0),
    "a row without a table": lambda: attend(block_tables=ids([[0]])),
    "a row without a length": lambda: attend(context_lens=ids([1])),
    "starts without an end": lambda: attend(query_starts=ids([0, 1])),
    "starts that lie apart": lambda: attend(query_starts=apart([0, 1, 2])),
    "lengths that lie apart": lambda: attend(context_lens=apart([1, 1])),
    "queries of more tokens than keys": lambda: write(num_queries=2),
    "wider queries than keys": lambda: write(query_head=4 * HEAD, half=2 * HEAD),
    "heads added to rows": lambda: add_normed(ones(1, 2, 8), ones(1, 8)),
    "a norm's weight that lies apart": lambda: rms_norm(ones(2, 4), ones(8)[::2], 1e-5),
    "heads multiplied": lambda: multiply(ones(2, 8, 3)),
    "panels of another type": lambda: multiply(ones(2, 8), ones(2)),
    "panels that lie apart": lambda: multiply(ones(2, 8), apart([1, 0])),
    "rows behind a sketch's last": lambda: sketch(32, 16, 64),
    "wider rows than a sketch's": lambda: sketch(0, 16, 96),
    "a group without a table": lambda: fill(0),
    "a table without a group": lambda: fill(2),
}


@pytest.mark.parametrize("call", FITTING)
def test_what_fits_is_computed(call: Callable[[], None]) -> None:
    call()


@pytest.mark.parametrize("what", UNFIT)
def test_what_does_not_fit_is_refused(what: str) -> None:
    with pytest.raises(AssertionError):
        UNFIT[what]()
