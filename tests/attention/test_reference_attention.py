"""The oracle is right, and its bits do not depend on how the work was cut (ADR 5)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.attention.paged_rows import PagedRows, dense_attention, last_of_steps, make_shape, make_tokens

from quire.attention.reference import ReferenceBackend

SHAPES = [
    make_shape(),
    make_shape(num_heads=4, num_kv_heads=1, head_dim=16, window=24),
    make_shape(num_heads=3, num_kv_heads=3, head_dim=5, window=1),
    make_shape(num_heads=9, num_kv_heads=3, head_dim=64),
    make_shape(num_heads=4, num_kv_heads=2, head_dim=7, window=70, logit_softcap=5.0),
]


@pytest.fixture(params=[1, 2])
def num_threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@st.composite
def schedules(draw: st.DrawFn) -> tuple[list[int], list[dict[int, int]]]:
    """Lengths of the rows, and steps that compute them in chunks of any size, rows in any order in each step."""
    lengths = draw(st.lists(st.integers(1, 90), min_size=1, max_size=5))
    left = dict(enumerate(lengths))
    steps = []
    while left:
        rows = draw(st.permutations(sorted(left)))[: draw(st.integers(1, len(left)))]
        step = {r: draw(st.integers(1, left[r])) for r in rows}
        steps.append(step)
        left = {r: n - step.get(r, 0) for r, n in left.items() if n > step.get(r, 0)}
    return lengths, steps


@given(schedule=schedules(), shape=st.sampled_from(SHAPES), block_size=st.sampled_from([1, 4, 16]), seed=st.integers(0))
@pytest.mark.usefixtures("num_threads")
def test_bits_do_not_depend_on_the_schedule(schedule, shape, block_size, seed) -> None:  # type: ignore[no-untyped-def]
    lengths, steps = schedule
    rows = [make_tokens(shape, length, seed=r) for r, length in enumerate(lengths)]
    scheduled = PagedRows(ReferenceBackend(), shape, rows, block_size=block_size, seed=seed % 2**32).run(steps)
    for r, row in enumerate(rows):
        alone = PagedRows(ReferenceBackend(), shape, [row], block_size=16).run([{0: len(row)}])[0]
        assert torch.equal(scheduled[r], alone), r
    again = PagedRows(ReferenceBackend(), shape, rows, block_size=block_size).run(steps, last_tokens=True)
    for found, expected in zip(again, last_of_steps(scheduled, steps), strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_bits_do_not_depend_on_the_schedule_in_half_precision(dtype: torch.dtype) -> None:
    shape = SHAPES[4]
    rows = [make_tokens(shape, 50, seed=r, dtype=dtype) for r in range(2)]
    cut = PagedRows(ReferenceBackend(), shape, rows).run([{1: 7}, {0: 50, 1: 20}, {1: 23}])
    for r, row in enumerate(rows):
        assert torch.equal(cut[r], PagedRows(ReferenceBackend(), shape, [row]).run([{0: 50}])[0])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_dense_attention(shape) -> None:  # type: ignore[no-untyped-def]
    tokens = make_tokens(shape, 83, seed=1)
    output = PagedRows(ReferenceBackend(), shape, [tokens]).run([{0: 40}, {0: 1}, {0: 42}])[0]
    torch.testing.assert_close(output.double(), dense_attention(tokens, shape), rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("num_threads")
@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim"), [(9, 3, 64), (1, 1, 64), (8, 1, 33)])
def test_long_contexts_in_chunks(num_heads: int, num_kv_heads: int, head_dim: int) -> None:
    """Long enough for the library to choose its kernel and its split over threads by shape."""
    shape = make_shape(num_heads, num_kv_heads, head_dim)
    tokens = make_tokens(shape, 1000, seed=1)
    whole = PagedRows(ReferenceBackend(), shape, [tokens], block_size=16).run([{0: 1000}])[0]
    chunks = [{0: n} for n in (7, 400, 1, 1, 1, 90, 5, 495)]
    assert torch.equal(PagedRows(ReferenceBackend(), shape, [tokens], block_size=16).run(chunks)[0], whole)
