"""How the `torch` backend cuts a step: rows with one new token in buckets, the others in tiles of queries.

Cut once a step for each KV group and window, and read again by every layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from quire.attention.forward_batch import ForwardBatch

BUCKET_TOKENS = 4096
"""Cached tokens gathered at once for rows of one query: few calls, and the gathered K and V stay in the cache."""
BUCKET_PADDING = 1.25
"""The longest row of a bucket over the shortest, at most (16 tokens more are always allowed)."""
QUERY_TILE = 256
"""Queries of one row that attend together: keys after the tile or before its window cost nothing."""


@dataclass(frozen=True, slots=True)
class DecodeBucket:
    """n rows with one query each, their keys padded to the longest, L.

    tokens int64 [n]; slots int64 [n * L], where a row's padding repeats its own last slot, so that no other memory is
    read; visible bool [n, 1, 1, L], or None where nothing is padded.
    """

    tokens: torch.Tensor
    slots: torch.Tensor
    visible: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class QueryTile:
    """Queries and keys counted from the first of their row's in this step; visible bool [queries, keys]."""

    queries: slice
    keys: slice
    visible: torch.Tensor


@dataclass(frozen=True, slots=True)
class PrefillRow:
    """A row with several new tokens. `slots` holds its keys, or is None where they are all in this step, at the places of the queries."""

    tokens: slice
    slots: torch.Tensor | None
    tiles: list[QueryTile]


@dataclass(frozen=True, slots=True)
class StepWork:
    buckets: list[DecodeBucket]
    rows: list[PrefillRow]


def cut_step(batch: ForwardBatch, group: int, block_size: int, window: int | None) -> StepWork:
    tables = batch.groups[group].block_tables
    decoding = []
    prefilling = []
    for row in range(batch.num_rows):
        if batch.query_starts[row + 1] - batch.query_starts[row] == 1:
            decoding.append(row)
        else:
            prefilling.append(_prefill_row(batch, row, tables[row], block_size, window))
    num_keys = {row: _num_keys(batch.context_lens[row], window) for row in decoding}
    buckets = [
        _decode_bucket(batch, rows, [num_keys[row] for row in rows], tables, block_size)
        for rows in _similar_rows(num_keys)
    ]
    return StepWork(buckets, prefilling)


def _num_keys(context_len: int, window: int | None) -> int:
    return context_len if window is None else min(context_len, window)


def _similar_rows(num_keys: dict[int, int]) -> list[list[int]]:
    """Rows, longest first, in buckets of BUCKET_TOKENS and BUCKET_PADDING."""
    buckets: list[list[int]] = []
    for row in sorted(num_keys, key=lambda row: -num_keys[row]):
        longest = num_keys[buckets[-1][0]] if buckets else 0
        fits = buckets and (len(buckets[-1]) + 1) * longest <= BUCKET_TOKENS
        if fits and longest <= num_keys[row] * BUCKET_PADDING + 16:
            buckets[-1].append(row)
        else:
            buckets.append([row])
    return buckets


def _decode_bucket(
    batch: ForwardBatch, rows: list[int], num_keys: list[int], tables: torch.Tensor, block_size: int
) -> DecodeBucket:
    last_key = torch.tensor([batch.context_lens[row] - 1 for row in rows]).unsqueeze(1)
    lengths = torch.tensor(num_keys).unsqueeze(1)
    places = torch.arange(num_keys[0])
    positions = torch.minimum(last_key - lengths + 1 + places, last_key)
    slots = tables[torch.tensor(rows)].gather(1, positions // block_size) * block_size + positions % block_size
    padded = num_keys[-1] < num_keys[0]
    return DecodeBucket(
        tokens=torch.tensor([batch.query_starts[row] for row in rows]),
        slots=slots.flatten(),
        visible=(places < lengths)[:, None, None] if padded else None,
    )


def _prefill_row(batch: ForwardBatch, row: int, table: torch.Tensor, block_size: int, window: int | None) -> PrefillRow:
    tokens = slice(batch.query_starts[row], batch.query_starts[row + 1])
    context_len = batch.context_lens[row]
    start = context_len - (tokens.stop - tokens.start)
    first_key = 0 if window is None else max(0, start - window + 1)
    slots = None
    if start > 0 or batch.select is not None:
        positions = torch.arange(first_key, context_len)
        slots = table[positions // block_size] * block_size + positions % block_size
    tiles = []
    for first in range(start, context_len, QUERY_TILE):
        last = min(first + QUERY_TILE, context_len)
        first_visible = 0 if window is None else max(0, first - window + 1)
        tiles.append(
            QueryTile(
                queries=slice(first - start, last - start),
                keys=slice(first_visible - first_key, last - first_key),
                visible=_visible(torch.arange(first, last), torch.arange(first_visible, last), window),
            )
        )
    return PrefillRow(tokens, slots, tiles)


def _visible(queries: torch.Tensor, keys: torch.Tensor, window: int | None) -> torch.Tensor:
    queries = queries.unsqueeze(1)
    visible = keys <= queries
    if window is not None:
        visible &= keys > queries - window
    return visible
