"""Every reference op gives a row the same bits alone and at any place of any batch (ADR 5), and the right value."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quire.kernels import reference
from quire.kernels.reference import ReferenceOps, row_sum

OPS = ReferenceOps()
RowOp = Callable[[torch.Tensor], torch.Tensor]
LINEAR_SHAPES = [(576, 1536), (1536, 576), (640, 2048), (1152, 300), (37, 53), (1, 1), (255, 129), (96, 320)]


@pytest.fixture(params=[1, 2])
def num_threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def rows_of(num_rows: int, width: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(num_rows, width, generator=generator) * 3).to(dtype)


def assert_rows_are_independent(op: RowOp, x: torch.Tensor, cuts: list[int], order: list[int]) -> None:
    """The rows shuffled and cut into calls; some of them alone give the same."""
    shuffled = x[order]
    bounds = [0, *sorted(cut for cut in cuts if cut < len(x)), len(x)]
    parts = [op(shuffled[a:b]) for a, b in pairwise(bounds) if a < b]
    together = torch.cat(parts)
    for i in {0, *cuts, len(x) - 1} & set(range(len(x))):
        assert torch.equal(together[i : i + 1], op(shuffled[i : i + 1].clone())), i


@st.composite
def splits(draw: st.DrawFn) -> tuple[int, list[int], list[int]]:
    num_rows = draw(st.integers(1, 80))
    return num_rows, draw(st.lists(st.integers(1, 80), max_size=5)), draw(st.permutations(range(num_rows)))


@given(split=splits(), shape=st.sampled_from(LINEAR_SHAPES), dtype=st.sampled_from([torch.float32, torch.bfloat16]))
@pytest.mark.usefixtures("num_threads")
def test_linear(split, shape, dtype) -> None:  # type: ignore[no-untyped-def]
    num_rows, cuts, order = split
    weight, bias = rows_of(shape[1], shape[0], 1, dtype), rows_of(1, shape[1], 2, dtype)[0]
    assert_rows_are_independent(
        lambda x: OPS.linear(x, weight, bias), rows_of(num_rows, shape[0], 3, dtype), cuts, order
    )


@given(
    split=splits(),
    width=st.sampled_from([1, 8, 37, 576, 1536, 2049]),
    kind=st.sampled_from(["silu", "gelu", "gelu_tanh", "relu"]),
)
@pytest.mark.usefixtures("num_threads")
def test_activations(split, width, kind) -> None:  # type: ignore[no-untyped-def]
    num_rows, cuts, order = split
    x = rows_of(num_rows, 2 * width, 1)
    assert_rows_are_independent(lambda rows: OPS.activate(rows, kind), x, cuts, order)
    assert_rows_are_independent(lambda rows: OPS.gated(rows[:, :width], rows[:, width:], kind), x, cuts, order)


@given(split=splits(), width=st.sampled_from([1, 37, 576, 40000]))
@pytest.mark.usefixtures("num_threads")
def test_norms(split, width) -> None:  # type: ignore[no-untyped-def]
    num_rows, cuts, order = split
    x, weight, bias = rows_of(num_rows, width, 1), rows_of(1, width, 2)[0], rows_of(1, width, 3)[0]
    assert_rows_are_independent(lambda rows: OPS.rms_norm(rows, weight, 1e-6), x, cuts, order)
    assert_rows_are_independent(lambda rows: OPS.layer_norm(rows, weight, bias, 1e-5), x, cuts, order)


@given(split=splits(), heads=st.integers(1, 3), head_dim=st.sampled_from([2, 6, 64]))
def test_rope(split, heads, head_dim) -> None:  # type: ignore[no-untyped-def]
    num_rows, cuts, order = split
    half = head_dim // 2

    def rope(rows: torch.Tensor) -> torch.Tensor:
        x, angles = rows[:, : heads * head_dim], rows[:, heads * head_dim :]
        cos, sin = angles[:, :half], angles[:, half:]
        return OPS.rope(x.reshape(-1, heads, head_dim), cos, sin).flatten(1)

    assert_rows_are_independent(rope, rows_of(num_rows, (heads + 1) * head_dim, 1), cuts, order)


def test_linear_multiplies_row_by_row_where_places_disagree(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library whose products depend on the place of the row must not break the promise."""
    monkeypatch.setattr(reference, "_places_agree", lambda *shape: False)
    x, weight = rows_of(5, 37, 1), rows_of(53, 37, 2)
    y = OPS.linear(x, weight, None)
    torch.testing.assert_close(y, x @ weight.T, rtol=1e-4, atol=1e-4)
    assert torch.equal(OPS.linear(x[3:], weight, None), y[3:])


def test_values() -> None:
    x, weight, bias = rows_of(70, 37, 1), rows_of(53, 37, 2), rows_of(1, 53, 3)[0]
    exact = x.double() @ weight.double().T + bias
    torch.testing.assert_close(OPS.linear(x, weight, bias).double(), exact, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(row_sum(x).double(), x.double().sum(-1, keepdim=True), rtol=1e-5, atol=1e-5)
    ids = torch.tensor([3, 0, 3])
    assert torch.equal(OPS.embedding(ids, weight), weight[[3, 0, 3]])
