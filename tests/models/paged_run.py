"""Runs a model over several sequences at once, chunk by chunk through a paged cache, and keeps all logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from quire.attention.backend import LayerKVCache
from quire.attention.forward_batch import ForwardBatch, RowBlocks
from quire.attention.select import select_backend
from quire.checkpoint.checkpoint import open_checkpoint
from quire.core.quantization import Quantization
from quire.kernels.select import select_ops
from quire.kernels.tensor import Tensors
from quire.models.decoder import Decoder
from quire.models.registry import DECODERS, load_model

BLOCK_SIZE = 4
Convert = Callable[[torch.Tensor], Any]


def load(
    reference: Path | str,
    dtype: torch.dtype = torch.float32,
    backend: str = "reference",
    quantization: Quantization = "none",
) -> Decoder:
    checkpoint, ops = open_checkpoint(str(reference)), select_ops(backend)
    own = ops.tensors.dtype(str(dtype).removeprefix("torch."))
    attention = select_backend(backend, own, checkpoint.config)
    return load_model(DECODERS, checkpoint, own, ops, attention, quantization)


@torch.inference_mode()
def all_logits(
    model: Decoder,
    rows: Sequence[Sequence[int]],
    chunk_sizes: Sequence[int],
    tensors: Tensors | None = None,
    *,
    last_tokens: bool = False,
) -> list[torch.Tensor]:
    """float32 [len(row), V] for each row, or of the last token of each of its chunks. Row r computes chunk_sizes[r] tokens a step
    until it is done.

    `tensors`: of the model's kind; torch's unless given. Others are run in float32.
    """
    own = (lambda x: x) if tensors is None else (lambda x: tensors.of(x.numpy()))
    as_torch = (lambda x: x) if tensors is None else (lambda x: torch.from_numpy(tensors.numbers(x)))
    tables = _scattered_tables(rows)
    num_blocks = int(tables.max()) + 1
    caches = [_unwritten_cache(model, num_blocks, own) for _ in range(model.config.num_layers)]
    found: list[list[torch.Tensor]] = [[] for _ in rows]
    starts = [0] * len(rows)
    while any(start < len(row) for start, row in zip(starts, rows, strict=True)):
        live = [r for r, row in enumerate(rows) if starts[r] < len(row)]
        stops = {r: min(starts[r] + chunk_sizes[r], len(rows[r])) for r in live}
        batch = _batch(model, rows, tables, [(r, starts[r], stops[r]) for r in live], own)
        if last_tokens:
            batch.last_layer = _of_last_tokens(batch, own)
        logits = as_torch(model.head.logits(model.forward(batch, caches)))
        query_starts = (batch.last_layer or batch).query_starts
        for i, r in enumerate(live):
            found[r].append(logits[query_starts[i] : query_starts[i + 1]])
            starts[r] = stops[r]
    return [torch.cat(parts) for parts in found]


def _of_last_tokens(batch: ForwardBatch, own: Convert) -> ForwardBatch:
    last = own(torch.tensor(batch.query_starts[1:]) - 1)
    return batch.of_last_tokens(lambda x: x.index_select(0, last))


def _scattered_tables(rows: Sequence[Sequence[int]]) -> torch.Tensor:
    """int64 [R, most blocks]: every block is one row's only, in no particular order; 0 belongs to nobody."""
    width = max(-(-len(row) // BLOCK_SIZE) for row in rows)
    blocks = torch.randperm(len(rows) * width, generator=torch.Generator().manual_seed(0)) + 1
    return blocks.view(len(rows), width)


def _unwritten_cache(model: Decoder, num_blocks: int, own: Convert) -> LayerKVCache:
    """Of values so large that reading one where none was written shows in every logit."""
    shape = (num_blocks, BLOCK_SIZE, model.config.num_kv_heads, model.config.head_dim)
    return LayerKVCache(own(torch.full(shape, 1e4)), own(torch.full(shape, 1e4)))


def _batch(
    model: Decoder,
    rows: Sequence[Sequence[int]],
    tables: torch.Tensor,
    ranges: list[tuple[int, int, int]],
    own: Convert,
) -> ForwardBatch:
    """`ranges`: (row, start, stop)."""
    positions = torch.cat([torch.arange(start, stop) for _, start, stop in ranges])
    row_of_token = torch.cat([torch.full((stop - start,), r) for r, start, stop in ranges])
    slots = tables[row_of_token, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
    query_starts = [0]
    for _, start, stop in ranges:
        query_starts.append(query_starts[-1] + stop - start)
    return ForwardBatch(
        token_ids=own(torch.tensor([token for r, start, stop in ranges for token in rows[r][start:stop]])),
        positions=own(positions),
        query_starts=query_starts,
        context_lens=[stop for *_, stop in ranges],
        groups=[RowBlocks(own(tables[[r for r, *_ in ranges]]), own(slots))],
        layer_groups=[0] * model.config.num_layers,
    )
