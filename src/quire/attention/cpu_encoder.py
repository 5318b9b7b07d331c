"""Attention of encoders in the native kernel: every token of a text sees every other, and no KV outlives its layer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate, chain

import numpy as np

from quire.attention.backend import AttentionShape, LayerKVCache
from quire.attention.cpu_backend import CpuBackend
from quire.attention.forward_batch import ForwardBatch
from quire.kernels import native
from quire.kernels.array import Array, Arrays
from quire.kernels.native_texts import BLOCK_SIZE, write_texts


@dataclass(frozen=True, slots=True)
class TextBlocks:
    """Blocks for K and V of one layer at a time; each text has its own. `starts` are their first tokens, and T."""

    key: Array
    value: Array
    starts: Array
    block_tables: Array
    query_starts: Array
    lengths: Array

    @classmethod
    def of(cls, batch: ForwardBatch, key: Array) -> TextBlocks:
        """For all layers of a step; `key` is one's K [T, num_kv_heads, head_dim]."""
        arrays = Arrays()
        firsts = [
            range(start, start + length, BLOCK_SIZE)
            for start, length in zip(batch.query_starts, batch.context_lens, strict=False)
        ]
        starts = [*chain.from_iterable(firsts), batch.num_tokens]
        first_blocks = np.array([0, *accumulate(map(len, firsts))][:-1])
        shape = (len(starts) - 1, BLOCK_SIZE, *key.shape[1:])
        return cls(
            key.new_empty(shape),
            key.new_empty(shape),
            arrays.of(np.array(starts)),
            # Behind a text's last block stand others' numbers: the kernel does not look there.
            arrays.of(first_blocks[:, None] + np.arange(max(map(len, firsts)))),
            arrays.of(np.array(batch.query_starts)),
            arrays.of(np.array(batch.context_lens)),
        )


class CpuEncoderBackend:
    """The native kernel of decoders, over K and V that live as long as a layer: a text's bits depend on it alone."""

    name = "cpu"
    capabilities = replace(CpuBackend.capabilities, sliding_window=False, logit_softcap=False, int8_kv=False)

    def attend(
        self,
        query: Array,
        key: Array,
        value: Array,
        cache: LayerKVCache,
        shape: AttentionShape,
        batch: ForwardBatch,
        rotation: None = None,
    ) -> Array:
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
