"""Runs a model over several sequences at once, chunk by chunk through a paged cache, and keeps all logits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from quire.attention.backend import LayerKVCache
from quire.attention.forward_batch import ForwardBatch, RowBlocks
from quire.attention.select import select_backend
from quire.checkpoint.checkpoint import open_checkpoint
from quire.kernels.select import select_ops
from quire.models.registry import Model, load_model

BLOCK_SIZE = 4


def load(reference: Path | str, dtype: torch.dtype = torch.float32, backend: str = "reference") -> Model:
    checkpoint = open_checkpoint(str(reference))
    attention = select_backend(backend, dtype, checkpoint.config)
    return load_model(checkpoint, dtype, select_ops(backend), attention)


@torch.inference_mode()
def all_logits(
    model: Model, rows: Sequence[Sequence[int]], chunk_sizes: Sequence[int], dtype: torch.dtype = torch.float32
) -> list[torch.Tensor]:
    """float32 [len(row), V] for each row. Row r computes chunk_sizes[r] tokens a step until it is done."""
    tables = _scattered_tables(rows)
    caches = [_unwritten_cache(model, int(tables.max()) + 1, dtype) for _ in range(model.config.num_layers)]
    found: list[list[torch.Tensor]] = [[] for _ in rows]
    starts = [0] * len(rows)
    while any(start < len(row) for start, row in zip(starts, rows, strict=True)):
        live = [r for r, row in enumerate(rows) if starts[r] < len(row)]
        stops = {r: min(starts[r] + chunk_sizes[r], len(rows[r])) for r in live}
        batch = _batch(model, rows, tables, [(r, starts[r], stops[r]) for r in live])
        logits = model.logits(model.forward(batch, caches))
        for i, r in enumerate(live):
            found[r].append(logits[batch.query_starts[i] : batch.query_starts[i + 1]])
            starts[r] = stops[r]
    return [torch.cat(parts) for parts in found]


def _scattered_tables(rows: Sequence[Sequence[int]]) -> torch.Tensor:
    """int64 [R, most blocks]: every block is one row's only, in no particular order; 0 belongs to nobody."""
    width = max(-(-len(row) // BLOCK_SIZE) for row in rows)
    blocks = torch.randperm(len(rows) * width, generator=torch.Generator().manual_seed(0)) + 1
    return blocks.view(len(rows), width)


def _unwritten_cache(model: Model, num_blocks: int, dtype: torch.dtype) -> LayerKVCache:
    """Of values so large that reading one where none was written shows in every logit."""
    shape = (num_blocks, BLOCK_SIZE, model.config.num_kv_heads, model.config.head_dim)
    return LayerKVCache(torch.full(shape, 1e4, dtype=dtype), torch.full(shape, 1e4, dtype=dtype))


def _batch(
    model: Model, rows: Sequence[Sequence[int]], tables: torch.Tensor, ranges: list[tuple[int, int, int]]
) -> ForwardBatch:
    """`ranges`: (row, start, stop)."""
    positions = torch.cat([torch.arange(start, stop) for _, start, stop in ranges])
    row_of_token = torch.cat([torch.full((stop - start,), r) for r, start, stop in ranges])
    slots = tables[row_of_token, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
    query_starts = [0]
    for _, start, stop in ranges:
        query_starts.append(query_starts[-1] + stop - start)
    return ForwardBatch(
        token_ids=torch.tensor([token for r, start, stop in ranges for token in rows[r][start:stop]]),
        positions=positions,
        query_starts=query_starts,
        context_lens=[stop for *_, stop in ranges],
        groups=[RowBlocks(tables[[r for r, *_ in ranges]], slots)],
        layer_groups=[0] * model.config.num_layers,
        logits_indices=torch.arange(query_starts[-1]),
    )
