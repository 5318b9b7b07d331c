"""What recorded programs read: arrays that stay where they are, filled anew for each step."""

from __future__ import annotations

import numpy as np

from quire.attention.forward_batch import ForwardBatch, RowBlocks
from quire.core.kv_layout import KVCacheConfig
from quire.core.step import RowPlan
from quire.kernels.array import Array, int64_zeros
from quire.kernels.dtype import DType
from quire.kernels.native_steps import StepInputs
from quire.worker.row_table import Row, RowTable


class ProgramInputs:
    """For up to `max_tokens` tokens of up to `max_rows` rows; a program that was recorded for less reads the first of each."""

    def __init__(self, kv_cache: KVCacheConfig, max_tokens: int, max_rows: int, max_model_len: int) -> None:
        max_blocks = -(-max_model_len // kv_cache.block_size)
        self._layer_groups, self._max_model_len = kv_cache.layer_groups, max_model_len
        self._token_ids, self._positions = int64_zeros(max_tokens), int64_zeros(max_tokens)
        self._query_starts, self._context_lens = int64_zeros(max_rows + 1), int64_zeros(max_rows)
        self._groups = [RowBlocks(int64_zeros(max_rows, max_blocks), int64_zeros(max_tokens)) for _ in kv_cache.groups]
        self._last_tokens = int64_zeros(max_rows)
        self._one_a_row = Array(np.arange(max_rows + 1), DType.INT64)
        self._inputs = StepInputs(
            self._token_ids,
            self._positions,
            self._query_starts,
            self._context_lens,
            self._last_tokens,
            [(group.block_tables, group.slots) for group in self._groups],
            kv_cache.block_size,
        )

    def batch(self, num_tokens: int, num_rows: int) -> ForwardBatch:
        """To record a program with, of whose hidden states all are wanted."""
        context_lens = self._context_lens[:num_rows]
        return ForwardBatch(
            token_ids=self._token_ids[:num_tokens],
            positions=self._positions[:num_tokens],
            query_starts=[*range(num_rows), num_tokens],
            # Nobody knows yet.
            context_lens=[self._max_model_len] * num_rows,
            groups=[RowBlocks(group.block_tables[:num_rows], group.slots[:num_tokens]) for group in self._groups],
            layer_groups=self._layer_groups,
            scratch={"cpu": (self._query_starts[: num_rows + 1], context_lens)},
        )

    def batch_of_last_tokens(self, num_tokens: int, num_rows: int) -> ForwardBatch:
        """Of whose hidden states each row's last one is wanted."""
        batch, last = self.batch(num_tokens, num_rows), self._last_tokens[:num_rows]
        scratch = {"cpu": (self._one_a_row[: num_rows + 1], self._context_lens[:num_rows])}
        batch.last_layer = batch.of_last_tokens(lambda x: x.index_select(0, last), scratch)
        return batch

    def fill(self, table: RowTable, plans: list[RowPlan], rows: list[Row]) -> None:
        self._inputs.fill(
            table.tokens,
            table.tables,
            [row.table_row for row in rows],
            [row_plan.start for row_plan in plans],
            [row_plan.num_tokens for row_plan in plans],
        )
