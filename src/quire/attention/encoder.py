"""Attention of encoders: every token of a text sees every other, texts stand side by side, no KV is kept.

A step holds whole texts, so nothing is masked or padded: each text is computed by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch
import torch.nn.functional as F

from quire.attention.backend import ALL_DTYPES, AttentionCapabilities, AttentionShape, LayerKVCache
from quire.attention.forward_batch import ForwardBatch


class TorchEncoderBackend:
    """torch's fused attention, text by text."""

    name = "torch"
    capabilities = AttentionCapabilities(
        dtypes=ALL_DTYPES, sliding_window=False, logit_softcap=False, bitwise_dtypes=frozenset()
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
        output = query.new_empty(query.shape)
        for text in _texts(batch):
            # [tokens, heads, head_dim] -> [1, heads, tokens, head_dim]
            queries, keys, values = (x[text].transpose(0, 1).unsqueeze(0) for x in (query, key, value))
            attended = F.scaled_dot_product_attention(queries, keys, values, scale=shape.scale)
            output[text] = attended[0].transpose(0, 1)
        return output.flatten(1)


class ReferenceEncoderBackend:
    """The oracle, in float32. A text's products are computed in memory of their own: their bits depend on it alone."""

    name = "reference"
    capabilities = AttentionCapabilities(
        dtypes=ALL_DTYPES, sliding_window=False, logit_softcap=False, bitwise_dtypes=ALL_DTYPES
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
        output = torch.empty_like(query)
        for text in _texts(batch):
            queries, keys, values = (
                x[text].float().transpose(0, 1).clone(memory_format=torch.contiguous_format)
                for x in (query, key, value)
            )
            scores = torch.bmm(queries, keys.transpose(1, 2)).mul_(shape.scale)
            output[text] = torch.bmm(scores.softmax(-1), values).transpose(0, 1).to(query.dtype)
        return output.flatten(1)


def _texts(batch: ForwardBatch) -> Iterator[slice]:
    for first, last in pairwise(batch.query_starts):
        yield slice(first, last)
