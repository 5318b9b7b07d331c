"""The oracle: dense attention in float32, bitwise independent of the batch (ADR 5).

The unit of work is a tile of `QUERY_TILE` queries at fixed absolute positions, tile t holding positions
t * QUERY_TILE up to (t + 1) * QUERY_TILE, and its keys: every position from the first in the window of the tile's
first query to the tile's last. Which queries share a tile, where in it each stands, and how many keys there are follow
from positions alone. Queries of a tile that are not in this step, and keys that are not in the cache, are zeros, and
masked. So every call into a library has a shape that depends on absolute position and the model only; chunk
boundaries, neighbours and block ids cannot reach a query's arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from quire.attention.backend import ALL_DTYPES, AttentionCapabilities, AttentionShape, LayerKVCache
from quire.attention.forward_batch import ForwardBatch
from quire.attention.kv_write import write_kv

QUERY_TILE = 16


@dataclass(frozen=True, slots=True)
class _Tile:
    """Queries [first_query, last_query) of a row at absolute positions, within the tile that starts at `start`.

    Keys [first_key, start + QUERY_TILE); of these, slots holds where [first_cached, last_cached) lie in the cache.
    mask [QUERY_TILE, keys] is True where a query must not look.
    """

    start: int
    first_query: int
    last_query: int
    token_offset: int
    """Token index of position 0 of this row, so that token = position + token_offset."""
    first_key: int
    first_cached: int
    last_cached: int
    slots: torch.Tensor
    mask: torch.Tensor


class ReferenceBackend:
    name = "reference"
    capabilities = AttentionCapabilities(
        dtypes=ALL_DTYPES,
        sliding_window=True,
        logit_softcap=True,
        bitwise_dtypes=ALL_DTYPES,
    )

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cache: LayerKVCache,
        shape: AttentionShape,
        batch: ForwardBatch,
        rotation: None = None,
    ) -> torch.Tensor:
        group = batch.layer_groups[shape.layer]
        write_kv(cache, key, value, batch.groups[group].slots)
        scratch_key = (self.name, group, shape.window)
        if scratch_key not in batch.scratch:
            batch.scratch[scratch_key] = list(_tiles(batch, group, cache.key.shape[1], shape.window))
        query = batch.queries(query)
        output = torch.empty_like(query)
        for tile in batch.scratch[scratch_key]:
            first, last = tile.first_query + tile.token_offset, tile.last_query + tile.token_offset
            output[first:last] = _attend_tile(query[first:last], cache, tile, shape)
        return output.flatten(1)


def _tiles(batch: ForwardBatch, group: int, block_size: int, window: int | None) -> Iterator[_Tile]:
    for row in range(batch.num_rows):
        context_len = batch.context_lens[row]
        row_start = context_len - (batch.query_starts[row + 1] - batch.query_starts[row])
        positions = torch.arange(context_len)
        table = batch.groups[group].block_tables[row]
        slots = table[positions // block_size] * block_size + positions % block_size
        for start in range(row_start // QUERY_TILE * QUERY_TILE, context_len, QUERY_TILE):
            first_query, last_query = max(start, row_start), min(start + QUERY_TILE, context_len)
            first_key = 0 if window is None else max(0, start - window + 1)
            first_cached = 0 if window is None else max(0, first_query - window + 1)
            yield _Tile(
                start=start,
                first_query=first_query,
                last_query=last_query,
                token_offset=batch.query_starts[row] - row_start,
                first_key=first_key,
                first_cached=first_cached,
                last_cached=last_query,
                slots=slots[first_cached:last_query],
                mask=_mask(start, first_key, window),
            )


def _mask(start: int, first_key: int, window: int | None) -> torch.Tensor:
    queries = torch.arange(start, start + QUERY_TILE).unsqueeze(1)
    keys = torch.arange(first_key, start + QUERY_TILE)
    hidden = keys > queries
    if window is not None:
        hidden |= keys <= queries - window
    return hidden


def _attend_tile(query: torch.Tensor, cache: LayerKVCache, tile: _Tile, shape: AttentionShape) -> torch.Tensor:
    """query [queries, num_heads, head_dim] -> the same shape."""
    queries_per_kv = shape.num_heads // shape.num_kv_heads
    padded = torch.zeros(QUERY_TILE, shape.num_heads, shape.head_dim)
    place = slice(tile.first_query - tile.start, tile.last_query - tile.start)
    padded[place] = query.float()
    # [tile, kv, group, dim] -> [kv, group * tile, dim]: the heads of one group share their keys in one product.
    grouped = padded.view(QUERY_TILE, shape.num_kv_heads, queries_per_kv, shape.head_dim).permute(1, 2, 0, 3)
    grouped = grouped.reshape(shape.num_kv_heads, queries_per_kv * QUERY_TILE, shape.head_dim)
    keys, values = _gather(cache.key, tile, shape), _gather(cache.value, tile, shape)
    scores = torch.bmm(grouped, keys.transpose(1, 2)).mul_(shape.scale)
    if shape.logit_softcap is not None:
        scores = torch.tanh(scores / shape.logit_softcap) * shape.logit_softcap
    by_query = scores.view(shape.num_kv_heads, queries_per_kv, QUERY_TILE, -1)
    weights = by_query.masked_fill_(tile.mask, -torch.inf).softmax(-1).view_as(scores)
    output = torch.bmm(weights, values).view(shape.num_kv_heads, queries_per_kv, QUERY_TILE, shape.head_dim)
    output = output.permute(2, 0, 1, 3).reshape(QUERY_TILE, shape.num_heads, shape.head_dim)
    return output[place].to(query.dtype)


def _gather(cache: torch.Tensor, tile: _Tile, shape: AttentionShape) -> torch.Tensor:
    """K or V of the tile's keys, float32 [num_kv_heads, keys, head_dim], zero where the cache holds none of them."""
    num_keys = tile.start + QUERY_TILE - tile.first_key
    gathered = torch.zeros(shape.num_kv_heads, num_keys, shape.head_dim)
    cached = cache.flatten(0, 1)[tile.slots].float()
    gathered[:, tile.first_cached - tile.first_key : tile.last_cached - tile.first_key] = cached.transpose(0, 1)
    return gathered
