"""The planner must not import compute, so it repeats two constants of `torch_work`: here both are at hand."""

from __future__ import annotations

from itertools import accumulate

import torch
from hypothesis import given
from hypothesis import strategies as st

from quire.attention import torch_work
from quire.attention.forward_batch import ForwardBatch, RowBlocks
from quire.plan import activations

BLOCK_SIZE = 16


def test_the_planner_knows_how_the_backend_cuts_a_step() -> None:
    assert activations.BUCKET_TOKENS == torch_work.BUCKET_TOKENS
    assert activations.QUERY_TILE == torch_work.QUERY_TILE


Rows = list[tuple[int, int]]
"""(tokens of the step, context) of each row."""


def decoding(longest: int, num_rows: int) -> Rows:
    """Down to three quarters of the longest: rows that share buckets, and padding."""
    return [(1, max(1, longest - longest * row // (4 * num_rows))) for row in range(num_rows)]


prefilling = st.lists(st.integers(2, 700).flatmap(lambda n: st.tuples(st.just(n), st.integers(n, 6000))), max_size=3)


@given(
    rows=st.builds(decoding, st.integers(1, 6000), st.integers(1, 100)),
    prefilling=prefilling,
    window=st.none() | st.integers(1, 800),
)
def test_what_the_backend_holds_at_once_is_what_the_planner_counts(
    rows: Rows, prefilling: Rows, window: int | None
) -> None:
    """However rows are padded: the terms of `activation_bytes` for masks, gathered tokens and the mask of a tile."""
    rows = rows + prefilling
    work = torch_work.cut_step(step_of(rows), 0, BLOCK_SIZE, window)
    max_model_len = max(context for _, context in rows)
    masks = [bucket.visible for bucket in work.buckets if bucket.visible is not None]
    for bucket in work.buckets:
        assert len(bucket.slots) <= max(activations.BUCKET_TOKENS, max_model_len)
    for row in work.rows:
        assert row.slots is None or len(row.slots) <= max_model_len
        tiles = [tile.visible for tile in row.tiles]
        assert max(tile.numel() for tile in tiles) <= activations.QUERY_TILE * max_model_len
        masks += tiles
    assert sum(mask.nbytes for mask in masks) <= sum(num_tokens for num_tokens, _ in rows) * max_model_len


def step_of(rows: Rows) -> ForwardBatch:
    starts = [0, *accumulate(num_tokens for num_tokens, _ in rows)]
    blocks_per_row = max(context for _, context in rows) // BLOCK_SIZE + 1
    tables = torch.arange(len(rows) * blocks_per_row).view(len(rows), blocks_per_row)
    tokens = torch.zeros(starts[-1], dtype=torch.int64)
    contexts = [context for _, context in rows]
    return ForwardBatch(tokens, tokens, starts, contexts, [RowBlocks(tables, tokens)], [0], tokens[:0])
