"""Attention of encoders: every token of a text sees every other, texts stand side by side, no KV is kept.

A step holds whole texts, so nothing is masked or padded: each text is computed by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, chain

import torch
import torch.nn.functional as F

from quire.attention.backend import ALL_DTYPES, AttentionCapabilities, AttentionShape, LayerKVCache
from quire.attention.forward_batch import ForwardBatch
from quire.core.native import has_native_module
from quire.kernels import native
from quire.kernels.native_texts import BLOCK_SIZE, write_texts


def no_cache() -> LayerKVCache:
    """What encoder layers get where a decoder's get their cache."""
    return LayerKVCache(torch.empty(0), torch.empty(0))


@dataclass(frozen=True, slots=True)
class TextBlocks:
    """Blocks for K and V of one layer at a time; each text has its own. `starts` are their first tokens, and T."""

    key: torch.Tensor
    value: torch.Tensor
    starts: torch.Tensor
    block_tables: torch.Tensor
    query_starts: torch.Tensor
    lengths: torch.Tensor

    @classmethod
    def of(cls, batch: ForwardBatch, key: torch.Tensor) -> TextBlocks:
        """For all layers of a step; `key` is one's K [T, num_kv_heads, head_dim]."""
        firsts = [range(text.start, text.stop, BLOCK_SIZE) for text in _texts(batch)]
        starts = [*chain.from_iterable(firsts), batch.num_tokens]
        first_blocks = torch.tensor([0, *accumulate(map(len, firsts))][:-1])
        shape = (len(starts) - 1, BLOCK_SIZE, *key.shape[1:])
        return cls(
            torch.empty(shape, dtype=key.dtype),
            torch.empty(shape, dtype=key.dtype),
            torch.tensor(starts),
            # Behind a text's last block stand others' numbers: the kernel does not look there.
            first_blocks.unsqueeze(1) + torch.arange(max(map(len, firsts))),
            torch.tensor(batch.query_starts),
            torch.tensor(batch.context_lens),
        )


class CpuEncoderBackend:
    """The native kernel of decoders, over K and V that live as long as a layer: a text's bits depend on it alone."""

    name = "cpu"
    capabilities = AttentionCapabilities(
        # None where the kernels were not built: never chosen.
        dtypes=native.DTYPES if has_native_module() else frozenset(),
        sliding_window=False,
        logit_softcap=False,
        bitwise_dtypes=native.DTYPES,
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
        if self.name not in batch.scratch:
            batch.scratch[self.name] = TextBlocks.of(batch, key)
        texts: TextBlocks = batch.scratch[self.name]
        write_texts(key, value, texts.key, texts.value, texts.starts)
        return native.paged_attention(
            query,
            texts.key,
            texts.value,
            texts.block_tables,
            texts.query_starts,
            texts.lengths,
            scale=shape.scale,
            causal=False,
        ).flatten(1)


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
    for first, last in zip(batch.query_starts, batch.query_starts[1:], strict=False):
        yield slice(first, last)
