"""The ends of a recorded step: what its program reads, and its most likely tokens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.core.native import has_native_module
from quire.kernels import native_module
from quire.kernels.array import Array
from quire.kernels.dtype import DType
from quire.kernels.native_steps import StepInputs, most_likely
from quire.kernels.recording import Arena
from quire.sampling.distribution import most_likely as most_likely_in_numpy

pytestmark = pytest.mark.skipif(not has_native_module(), reason="the native kernels were not built")


def check(logits: np.ndarray) -> None:
    token_ids, largest = most_likely(Array(logits, DType.FLOAT32))
    expected = most_likely_in_numpy(logits)
    assert token_ids.stored.tolist() == expected.token_ids
    np.testing.assert_array_equal(largest.stored, expected.logits)


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("num_tokens", [1, 3, 16, 4095, 4096, 4097, 9000, 49152])
def test_most_likely(num_tokens: int) -> None:
    check(np.random.default_rng(num_tokens).standard_normal((3, num_tokens), np.float32))


@given(
    rows=st.lists(
        st.lists(st.sampled_from([0.0, -0.0, 1.0, 2.5, -3.0, np.inf, -np.inf, np.nan]), min_size=37, max_size=37),
        min_size=1,
        max_size=4,
    )
)
def test_most_likely_where_values_are_equal_or_none(rows: list[list[float]]) -> None:
    check(np.array(rows, np.float32))


@pytest.mark.usefixtures("instruction_set")
def test_of_equal_values_in_several_parts_the_first_is_taken() -> None:
    logits = np.full((4, 10_000), -1.0, np.float32)
    logits[0, [4095, 4096, 9999]] = 7
    logits[1, [9998, 9999]] = np.nan
    logits[2] = -np.inf
    logits[3, [20, 8000]] = np.nan
    check(logits)


def test_recorded_it_reads_what_is_there_when_it_runs() -> None:
    logits = Array(np.zeros((2, 5000), np.float32), DType.FLOAT32)
    recording = native_module.new_recording(Arena())
    with recording:
        token_ids, largest = most_likely(logits)
    logits.stored[0, 4999], logits.stored[1, 3] = 2, 1
    native_module.run(recording)
    assert token_ids.stored.tolist() == [4999, 3]
    assert largest.stored.tolist() == [2, 1]


@given(
    block_size=st.sampled_from([1, 2, 16]),
    num_groups=st.integers(1, 3),
    order=st.permutations(range(6)),
    num_rows=st.integers(1, 6),
    data=st.data(),
)
def test_inputs_are_gathered_from_the_tables(
    block_size: int, num_groups: int, order: list[int], num_rows: int, data: st.DataObject
) -> None:
    max_tokens, max_blocks = 48, 48 // block_size
    random = np.random.default_rng(block_size)
    tokens = random.integers(0, 1000, (8, max_tokens))
    tables = [random.integers(1, 1000, (8, max_blocks)) for _ in range(num_groups)]
    rows = order[:num_rows]
    starts = [data.draw(st.integers(0, max_tokens - 1)) for _ in rows]
    counts = [data.draw(st.integers(1, min(9, max_tokens - start))) for start in starts]
    total, room = sum(counts), 6 * 9

    def poisoned(*shape: int) -> Array:
        return Array(np.full(shape, -7), DType.INT64)

    token_ids, positions, query_starts = poisoned(room), poisoned(room), poisoned(7)
    context_lens, last_tokens = poisoned(6), poisoned(6)
    groups = [(poisoned(6, max_blocks), poisoned(room)) for _ in tables]
    inputs = StepInputs(token_ids, positions, query_starts, context_lens, last_tokens, groups, block_size)
    inputs.fill(tokens, tables, rows, starts, counts)
    spans = [(row, range(start, start + count)) for row, start, count in zip(rows, starts, counts, strict=True)]
    assert token_ids.stored[:total].tolist() == [tokens[row, position] for row, span in spans for position in span]
    assert positions.stored[:total].tolist() == [position for _, span in spans for position in span]
    assert query_starts.stored[: num_rows + 1].tolist() == [0, *np.cumsum(counts)]
    assert last_tokens.stored[:num_rows].tolist() == [end - 1 for end in np.cumsum(counts)]
    assert context_lens.stored[:num_rows].tolist() == [span.stop for _, span in spans]
    for (block_tables, slots), table in zip(groups, tables, strict=True):
        for i, (row, span) in enumerate(spans):
            used = (span.stop - 1) // block_size + 1
            assert block_tables.stored[i, :used].tolist() == table[row, :used].tolist()
            assert (block_tables.stored[i, used:] == -7).all()
        assert slots.stored[:total].tolist() == [
            table[row, position // block_size] * block_size + position % block_size
            for row, span in spans
            for position in span
        ]
        assert (slots.stored[total:] == -7).all()
    assert (token_ids.stored[total:] == -7).all()
