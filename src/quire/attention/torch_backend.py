"""The fastest attention that plain torch operators give on a CPU."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from quire.attention.backend import AttentionCapabilities, AttentionShape, LayerKVCache
from quire.attention.forward_batch import ForwardBatch
from quire.attention.kv_write import write_kv


class TorchBackend:
    name = "torch"
    capabilities = AttentionCapabilities(
        dtypes=frozenset({torch.float32, torch.bfloat16, torch.float16}),
        sliding_window=True,
        logit_softcap=False,
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
    ) -> torch.Tensor:
        group = batch.groups[batch.layer_groups[shape.layer]]
        write_kv(cache, key, value, group.slots)
        output = torch.empty_like(query)
        block_size = cache.key.shape[1]
        for row in range(batch.num_rows):
            first, last = batch.query_starts[row], batch.query_starts[row + 1]
            context_len = batch.context_lens[row]
            first_key = 0
            if shape.window is not None:
                first_key = max(0, context_len - (last - first) - shape.window + 1)
            keys_at = torch.arange(first_key, context_len)
            slots = group.block_tables[row][keys_at // block_size] * block_size + keys_at % block_size
            keys = cache.key.flatten(0, 1)[slots].transpose(0, 1)
            values = cache.value.flatten(0, 1)[slots].transpose(0, 1)
            queries_at = batch.positions[first:last].unsqueeze(1)
            visible = keys_at <= queries_at
            if shape.window is not None:
                visible &= keys_at > queries_at - shape.window
            output[first:last] = F.scaled_dot_product_attention(
                query[first:last].transpose(0, 1).unsqueeze(0),
                keys.unsqueeze(0),
                values.unsqueeze(0),
                attn_mask=visible,
                scale=shape.scale,
                enable_gqa=True,
            )[0].transpose(0, 1)
        return output.flatten(1)
