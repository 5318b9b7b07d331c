"""The fast backend gives the dense answer, whatever the mix of rows, and never reads what nobody wrote."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.attention.paged_rows import (
    PagedRows,
    as_kept,
    dense_attention,
    last_of_steps,
    make_shape,
    make_tokens,
    rounded_to_codes,
)

from quire.attention import torch_work
from quire.attention.backend import AttentionBackend, AttentionShape
from quire.attention.torch_backend import TorchBackend

TOLERANCE = {torch.float32: 5e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
OVER_CODES = 2e-3  # a code may be rounded the other way; queries and weights have 16 bits
WITH_BYTES = 5e-2  # weights of 8 bits
SHAPES = [
    make_shape(num_heads=9, num_kv_heads=3, head_dim=64),
    make_shape(num_heads=4, num_kv_heads=1, head_dim=256, window=24),
    make_shape(num_heads=3, num_kv_heads=3, head_dim=5, window=1),
    make_shape(num_heads=6, num_kv_heads=2, head_dim=8, logit_softcap=5.0),
    make_shape(num_heads=4, num_kv_heads=2, head_dim=7, window=70, logit_softcap=5.0),
    make_shape(num_heads=6, num_kv_heads=2, head_dim=64, logit_softcap=5.0),
    make_shape(num_heads=4, num_kv_heads=1, head_dim=64, window=70, logit_softcap=5.0),
]


def assert_dense(
    paged: PagedRows, outputs: list[torch.Tensor], shape: AttentionShape, *, by_codes: bool = False
) -> None:
    """Of each row's last tokens, as many as there are outputs. `by_codes`: short queries are rounded to codes, as keys are, and
    weights to bytes."""
    for tokens, output in zip(paged.rows, outputs, strict=True):
        tolerance = max(TOLERANCE[output.dtype], OVER_CODES if paged.kv_dtype == torch.int8 else 0)
        kept = as_kept(tokens, paged.kv_dtype)
        if by_codes:
            tolerance = WITH_BYTES
        if by_codes and shape.head_dim <= 64:
            kept = replace(kept, query=rounded_to_codes(kept.query))
        expected = dense_attention(kept, shape, len(tokens) - len(output))
        torch.testing.assert_close(output.double(), expected, rtol=tolerance, atol=tolerance)


@st.composite
def schedules(draw: st.DrawFn) -> tuple[list[int], list[dict[int, int]]]:
    """A prefill of each row, cut or not, then decodes of all rows at once; late rows still prefill meanwhile."""
    lengths = draw(st.lists(st.integers(2, 120), min_size=1, max_size=6))
    left = dict(enumerate(lengths))
    steps = []
    while left:
        step = {}
        for r, n in left.items():
            decodes = n <= 6 or draw(st.booleans())
            step[r] = 1 if decodes and n < lengths[r] else draw(st.integers(1, n))
        steps.append(step)
        left = {r: n - step[r] for r, n in left.items() if n > step[r]}
    return lengths, steps


@given(
    schedule=schedules(),
    shape=st.sampled_from(SHAPES),
    dtype=st.sampled_from(list(TOLERANCE)),
    block_size=st.sampled_from([1, 4, 16]),
)
def test_mixed_steps(schedule, shape, dtype, block_size) -> None:  # type: ignore[no-untyped-def]
    lengths, steps = schedule
    rows = [make_tokens(shape, length, seed=r, dtype=dtype) for r, length in enumerate(lengths)]
    paged = PagedRows(TorchBackend(), shape, rows, block_size=block_size)
    outputs = paged.run(steps)
    assert_dense(paged, outputs, shape)
    again = PagedRows(TorchBackend(), shape, rows, block_size=block_size).run(steps, last_tokens=True)
    for found, expected in zip(again, last_of_steps(outputs, steps), strict=True):
        torch.testing.assert_close(found, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("window", [None, 100, 600])
def test_a_prompt_of_several_query_tiles(window: int | None) -> None:
    """Whole, and in chunks whose borders are not the tiles'."""
    shape = make_shape(window=window)
    length = 3 * torch_work.QUERY_TILE + 50
    rows = [make_tokens(shape, length, seed=r) for r in range(2)]
    paged = PagedRows(TorchBackend(), shape, rows, block_size=16)
    assert_dense(paged, paged.run([{0: length, 1: 300}, {1: length - 301}, {1: 1}]), shape)


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_many_decodes_of_uneven_length(shape: AttentionShape, dtype: torch.dtype) -> None:
    """Enough rows for several buckets, the rows of one padded to its longest."""
    lengths = [2, 40, 44, 45, 700, 640, 650, 690, 17, 3, 900, 905, 899]
    rows = [make_tokens(shape, length, seed=r, dtype=dtype) for r, length in enumerate(lengths)]
    paged = PagedRows(TorchBackend(), shape, rows, block_size=16)
    outputs = paged.run([{r: n - 1 for r, n in enumerate(lengths)}, dict.fromkeys(range(len(lengths)), 1)])
    assert_dense(paged, outputs, shape)


def test_another_rows_nan_stays_its_own() -> None:
    assert_nan_stays_its_own(TorchBackend())


def assert_nan_stays_its_own(backend: AttentionBackend, kv_dtype: torch.dtype | None = None) -> None:
    """A sequence that overflowed must not reach its neighbours, such as through the padding of a bucket."""
    shape = make_shape()
    rows = [make_tokens(shape, length, seed=length) for length in (20, 22, 31)]
    rows[2].value.fill_(torch.nan)
    paged = PagedRows(backend, shape, rows, kv_dtype=kv_dtype)
    outputs = paged.run([{0: 19, 1: 21, 2: 30}, {2: 1, 0: 1, 1: 1}])
    assert outputs[2].isnan().all()
    del paged.rows[2:]
    assert_dense(paged, outputs[:2], shape)
