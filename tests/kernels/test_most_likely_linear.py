"""The most likely tokens found while a table is multiplied: those of all its logits, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kernels.forced import SETS, forced
from tests.kernels.test_sketch import KINDS, activations, all_logits, make_table

from quire.core.native import has_native_module
from quire.kernels import native_module
from quire.kernels.array import Array
from quire.kernels.native_linear import linear_most_likely
from quire.kernels.native_steps import most_likely
from quire.kernels.recording import Arena
from quire.quantization.panels import PanelsTable

pytestmark = pytest.mark.skipif(not has_native_module(), reason="the native kernels were not built")

WIDTH = 96


def found(x: Array, table: PanelsTable, instruction_set: str | None = None) -> tuple[list[int], list[int]]:
    """Token ids, and their logits' bits."""
    token_ids, largest = forced(instruction_set, linear_most_likely, x, table.weight)
    return token_ids.stored.tolist(), largest.stored.view(np.int32).tolist()


def expected(x: Array, table: PanelsTable, instruction_set: str | None = None) -> tuple[list[int], list[int]]:
    token_ids, largest = most_likely(all_logits(x, table, instruction_set))
    return token_ids.stored.tolist(), largest.stored.view(np.int32).tolist()


@given(
    kind=st.sampled_from(KINDS),
    instruction_set=st.sampled_from(SETS or ("none",)),
    num_rows=st.integers(1, 40),
    vocab_size=st.one_of(st.integers(1, 200), st.sampled_from([64, 1024, 3000])),
    num_threads=st.sampled_from([1, 2, 3]),
)
def test_they_are_those_of_all_logits(
    kind: str, instruction_set: str, num_rows: int, vocab_size: int, num_threads: int
) -> None:
    rng = np.random.default_rng(vocab_size)
    table = make_table(kind, rng.standard_normal((vocab_size, WIDTH)).astype(np.float32))
    x = activations(table, rng.standard_normal((num_rows, WIDTH)))
    threads = native_module.thread_count()
    try:
        native_module.use_num_threads(num_threads)
        assert found(x, table, instruction_set) == expected(x, table, instruction_set)
    finally:
        native_module.use_num_threads(threads)


@given(
    kind=st.sampled_from(KINDS),
    instruction_set=st.sampled_from(SETS or ("none",)),
    num_rows=st.integers(1, 20),
    seed=st.integers(0, 99),
)
def test_of_equal_logits_the_first_is_taken(kind: str, instruction_set: str, num_rows: int, seed: int) -> None:
    """A table of few different rows: the largest logit is that of many tokens, all over the table."""
    rng = np.random.default_rng(seed)
    few = rng.standard_normal((5, WIDTH)).astype(np.float32)
    table = make_table(kind, few[rng.integers(0, 5, 2000)])
    x = activations(table, rng.standard_normal((num_rows, WIDTH)))
    assert found(x, table, instruction_set) == expected(x, table, instruction_set)


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("kind", KINDS)
def test_logits_that_are_no_numbers(kind: str, instruction_set: str) -> None:
    """A row of NaN has the first token, with NaN; rows beside it have theirs. All logits -inf: the first token too."""
    rng = np.random.default_rng(1)
    table = make_table(kind, np.abs(rng.standard_normal((700, WIDTH))).astype(np.float32))
    values = rng.standard_normal((6, WIDTH))
    values[2, 7] = np.nan
    values[4] = -np.inf
    x = activations(table, values)
    token_ids, bits = found(x, table, instruction_set)
    assert token_ids == expected(x, table, instruction_set)[0]
    logits, expected_logits = (
        np.array(some, np.int32).view(np.float32) for some in (bits, expected(x, table, instruction_set)[1])
    )
    np.testing.assert_array_equal(logits, expected_logits)
    assert token_ids[2] == 0
    assert np.isnan(logits[2])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("instruction_set", SETS)
def test_tokens_whose_weights_are_no_numbers(instruction_set: str, bad: float) -> None:
    """Some tokens' logits are NaN, and of those the first is taken."""
    rng = np.random.default_rng(2)
    values = rng.standard_normal((1500, WIDTH)).astype(np.float32)
    values[[1403, 811, 1499]] = bad
    table = make_table("float32", values)
    x = activations(table, rng.standard_normal((9, WIDTH)))
    assert found(x, table, instruction_set)[0] == expected(x, table, instruction_set)[0]
    if np.isnan(bad):
        assert found(x, table, instruction_set)[0] == [811] * 9


@pytest.mark.parametrize("kind", KINDS)
def test_recorded_for_many_rows_it_runs_for_fewer(kind: str) -> None:
    rng = np.random.default_rng(3)
    table = make_table(kind, rng.standard_normal((1000, WIDTH)).astype(np.float32))
    x = activations(table, rng.standard_normal((20, WIDTH)))
    recording = native_module.new_recording(Arena())
    with recording:
        token_ids, _ = linear_most_likely(x, table.weight)
    for num_rows in (20, 7, 1):
        token_ids.stored[:] = -1
        native_module.run(recording, (num_rows, num_rows))
        assert token_ids.stored[:num_rows].tolist() == expected(x[:num_rows], table)[0]
        assert (token_ids.stored[num_rows:] == -1).all()
