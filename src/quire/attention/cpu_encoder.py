"""Attention of encoders in the native kernel: every token of a text sees every other, and no KV outlives its layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from quire.attention.backend import AttentionShape, LayerKVCache
from quire.attention.cpu_backend import CpuBackend
from quire.attention.forward_batch import ForwardBatch
from quire.kernels import native_attention
from quire.kernels.array import Array, int64_zeros
from quire.kernels.native_attention import TEXT_BLOCK_SIZE, write_texts


@dataclass(frozen=True, slots=True)
class TextTables:
    """Which tokens lie in which blocks: each text has its own.

    int64 starts [B + 1]: the first token of each block, then T; block_tables [R, blocks of a text], query_starts [R + 1], lengths [R].
    """

    starts: Array
    block_tables: Array
    query_starts: Array
    lengths: Array

    @classmethod
    def of(cls, lengths: Sequence[int]) -> TextTables:
        made = cls.with_room(sum(map(_num_blocks, lengths)), len(lengths), max(lengths))
        made.fill(lengths)
        return made

    @classmethod
    def with_room(cls, num_blocks: int, num_texts: int, max_length: int) -> TextTables:
        return cls(
            int64_zeros(num_blocks + 1),
            int64_zeros(num_texts, _num_blocks(max_length)),
            int64_zeros(num_texts + 1),
            int64_zeros(num_texts),
        )

    def fill(self, lengths: Sequence[int]) -> None:
        """For texts of these lengths. Blocks that are not needed have no tokens."""
        ends, num_blocks = np.cumsum(lengths), np.array([_num_blocks(length) for length in lengths])
        ends_of_blocks = np.cumsum(num_blocks)
        begins, first_blocks = ends - lengths, ends_of_blocks - num_blocks
        starts, total = self.starts.stored, ends_of_blocks[-1]
        in_text = np.arange(total) - np.repeat(first_blocks, num_blocks)
        starts[:total] = np.repeat(begins, num_blocks) + TEXT_BLOCK_SIZE * in_text
        starts[total:] = ends[-1]
        tables = self.block_tables.stored
        # Behind a text's last block stand others' numbers: the kernel does not look there.
        tables[: len(lengths)] = first_blocks[:, None] + np.arange(tables.shape[1])
        self.query_starts.stored[1 : len(lengths) + 1] = ends
        self.lengths.stored[: len(lengths)] = lengths


class TextBlocks:
    """Blocks for K and V, of one layer at a time."""

    def __init__(self, tables: TextTables) -> None:
        self.tables = tables
        self._blocks: tuple[Array, Array] | None = None

    def write(self, key: Array, value: Array) -> tuple[Array, Array]:
        """key, value [T, num_kv_heads, head_dim] into their blocks."""
        if self._blocks is None:
            shape = (self.tables.starts.shape[0] - 1, TEXT_BLOCK_SIZE, *key.shape[1:])
            self._blocks = key.new_empty(shape), key.new_empty(shape)
        write_texts(key, value, *self._blocks, self.tables.starts)
        return self._blocks


def _num_blocks(length: int) -> int:
    return -(-length // TEXT_BLOCK_SIZE)


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
            batch.scratch[self.name] = TextBlocks(TextTables.of(batch.context_lens))
        blocks: TextBlocks = batch.scratch[self.name]
        key_blocks, value_blocks = blocks.write(key, value)
        return native_attention.paged_attention(
            query,
            key_blocks,
            value_blocks,
            blocks.tables.block_tables,
            blocks.tables.query_starts,
            blocks.tables.lengths,
            scale=shape.scale,
            causal=False,
        ).flatten(1)
