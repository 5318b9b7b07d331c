"""The worker's persistent rows: tokens and block tables in arrays, so that a step's batch is gathered, not rebuilt."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from quire.core.arrays import Int64Array
from quire.core.kv_layout import KVCacheConfig
from quire.core.step import NewRow, RowPlan
from quire.sampling.grammar import Grammars
from quire.sampling.sampler import SamplingRow


class Row:
    """One sequence on this worker. `table_row` is its row in the arrays of RowTable."""

    __slots__ = ("num_blocks", "sampling", "table_row", "token_ids")

    def __init__(self, new: NewRow, table_row: int, grammars: Grammars | None) -> None:
        self.table_row = table_row
        self.token_ids = list(new.token_ids)
        self.num_blocks = [0] * len(new.block_ids)
        self.sampling = SamplingRow(
            new.sampling_params, new.seed, self.token_ids, new.num_prompt_tokens, new.stop_token_ids, grammars
        )


def all_hidden_wanted(plans: Sequence[RowPlan], rows: Sequence[Row]) -> bool:
    """Whether some row wants more of a step than its last token's logits: those of its prompt."""
    return any(
        row.sampling.num_prompt_logprobs is not None and row_plan.start < row.sampling.num_prompt_tokens - 1
        for row_plan, row in zip(plans, rows, strict=True)
    )


class RowTable:
    """tokens: int64 [rows, max_model_len]. tables[g]: int64 [rows, max blocks], zero (NULL_BLOCK) where unused."""

    def __init__(
        self, config: KVCacheConfig, max_num_rows: int, max_model_len: int, grammars: Grammars | None = None
    ) -> None:
        self._grammars = grammars
        self._max_model_len = max_model_len
        max_blocks = -(-max_model_len // config.block_size)
        self.tokens: Int64Array = np.zeros((max_num_rows, max_model_len), np.int64)
        self._tokens = self.tokens.data
        """The same, for single numbers: numpy needs ten times as long for each."""
        self.tables: list[Int64Array] = [np.zeros((max_num_rows, max_blocks), np.int64) for _ in config.groups]
        self._free_rows = list(range(max_num_rows - 1, -1, -1))
        self.rows: dict[int, Row] = {}

    def add(self, new: NewRow) -> None:
        if not self._free_rows:
            self._grow()
        row = Row(new, self._free_rows.pop(), self._grammars)
        self.rows[new.seq_id] = row
        self.tokens[row.table_row, : len(new.token_ids)] = new.token_ids
        self.append_blocks(row, new.block_ids)

    def release(self, seq_id: int) -> None:
        """Forget a row. Its tables are zeroed: a stale block id must never be read."""
        row = self.rows.pop(seq_id, None)
        if row is None:
            return
        for group, num_blocks in enumerate(row.num_blocks):
            self.tables[group][row.table_row, :num_blocks] = 0
        self._free_rows.append(row.table_row)

    def append_blocks(self, row: Row, block_ids: list[list[int]]) -> None:
        for group, blocks in enumerate(block_ids):
            if blocks:
                start = row.num_blocks[group]
                row.num_blocks[group] = start + len(blocks)
                self.tables[group][row.table_row, start : start + len(blocks)] = blocks

    def append_token(self, row: Row, token_id: int) -> None:
        """A token sampled here. One past the context is legal (it is never computed) and not stored."""
        position = len(row.token_ids)
        row.token_ids.append(token_id)
        if position < self._max_model_len:
            self._tokens[row.table_row, position] = token_id

    def _grow(self) -> None:
        """More rows than max_num_seqs exist for a moment when finished ones are not released yet."""
        old = self.tokens.shape[0]
        self.tokens = np.concatenate([self.tokens, np.zeros_like(self.tokens)])
        self._tokens = self.tokens.data
        self.tables = [np.concatenate([table, np.zeros_like(table)]) for table in self.tables]
        self._free_rows = list(range(2 * old - 1, old - 1, -1))
