"""The fastest attention that plain torch operators give on a CPU (docs/lab.md has the measurements).

torch's fused attention reads strided memory, so K and V are gathered from their blocks once and never repeated for
the query heads that share them: rows of one query hand those heads over as if they were queries, longer rows get
K and V with a stride of zero.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from quire.attention.backend import ALL_DTYPES, AttentionCapabilities, AttentionShape, LayerKVCache
from quire.attention.forward_batch import ForwardBatch
from quire.attention.kv_write import write_kv
from quire.attention.torch_work import DecodeBucket, PrefillRow, StepWork, cut_step


class TorchBackend:
    name = "torch"
    capabilities = AttentionCapabilities(
        dtypes=ALL_DTYPES,
        sliding_window=True,
        logit_softcap=True,
        bitwise_dtypes=frozenset(),
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
            batch.scratch[scratch_key] = cut_step(batch, group, cache.key.shape[1], shape.window)
        work: StepWork = batch.scratch[scratch_key]
        query = batch.queries(query)
        output = query.new_empty(query.shape)
        for bucket in work.buckets:
            output[bucket.tokens] = _attend_bucket(query, cache, bucket, shape)
        for row in work.rows:
            _attend_row(query[row.tokens], key[row.tokens], value[row.tokens], cache, row, shape, output[row.tokens])
        return output.flatten(1)


def _attend_bucket(
    query: torch.Tensor, cache: LayerKVCache, bucket: DecodeBucket, shape: AttentionShape
) -> torch.Tensor:
    """One query a row -> [n, num_heads, head_dim]. Heads that share K and V stand where queries would."""
    num_rows = len(bucket.tokens)
    queries = query[bucket.tokens].view(num_rows, shape.num_kv_heads, -1, shape.head_dim)
    per_row = (num_rows, -1, shape.num_kv_heads, shape.head_dim)
    keys = _gather(cache.key, bucket.slots).view(per_row).transpose(1, 2)
    values = _gather(cache.value, bucket.slots).view(per_row).transpose(1, 2)
    return _attention(queries, keys, values, bucket.visible, shape).reshape(num_rows, shape.num_heads, shape.head_dim)


def _attend_row(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cache: LayerKVCache,
    row: PrefillRow,
    shape: AttentionShape,
    output: torch.Tensor,
) -> None:
    """Fills output [n, num_heads, head_dim], tile by tile. KV heads stand where rows of a batch would."""
    if row.slots is not None:
        key, value = _gather(cache.key, row.slots), _gather(cache.value, row.slots)
    heads = (shape.num_kv_heads, shape.num_heads // shape.num_kv_heads)
    # Views: splitting the dimension of the heads needs no copy.
    query, output = (x.view(-1, *heads, shape.head_dim) for x in (query, output))
    for tile in row.tiles:
        queries = query[tile.queries].permute(1, 2, 0, 3)
        keys, values = (
            x[tile.keys].transpose(0, 1).unsqueeze(1).expand(*heads, -1, shape.head_dim) for x in (key, value)
        )
        attended = _attention(queries, keys, values, tile.visible, shape)
        output[tile.queries] = attended.permute(2, 0, 1, 3)


def _gather(cache: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """[num_blocks, block_size, num_kv_heads, head_dim] at slots [n] -> [n, num_kv_heads, head_dim]."""
    return cache.flatten(0, 1).index_select(0, slots)


def _attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, visible: torch.Tensor | None, shape: AttentionShape
) -> torch.Tensor:
    """[batch, heads, queries, head_dim] over [batch, heads, keys, head_dim] -> as query."""
    if shape.logit_softcap is None:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=visible, scale=shape.scale)
    scores = torch.matmul(query.float(), key.float().transpose(-1, -2)).mul_(shape.scale / shape.logit_softcap)
    scores.tanh_().mul_(shape.logit_softcap)
    if visible is not None:
        scores.masked_fill_(~visible, -torch.inf)
    return torch.matmul(scores.softmax(-1), value.float()).to(query.dtype)
