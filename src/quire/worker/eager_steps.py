"""Steps of any shape, operator by operator."""

from __future__ import annotations

import numpy as np

from quire.attention.forward_batch import ForwardBatch, RowBlocks
from quire.core.step import RowPlan
from quire.kernels.tensor import Tensors
from quire.models.decoder import Decoder
from quire.worker.computed_step import ComputedStep
from quire.worker.kv_cache import KVCache
from quire.worker.row_table import Row, RowTable, all_hidden_wanted


class EagerSteps:
    """Gathers a step's batch from the table and gives it to the model."""

    def __init__(self, model: Decoder, kv: KVCache, table: RowTable, tensors: Tensors) -> None:
        self._model = model
        self._kv = kv
        self._table = table
        self._tensors = tensors
        self._layer_groups = kv.config.layer_groups
        self._block_size = kv.config.block_size

    def compute(self, plans: list[RowPlan], rows: list[Row]) -> ComputedStep:
        batch = self._gather(plans, rows)
        if not all_hidden_wanted(plans, rows):
            last = self._tensors.of(np.array(batch.query_starts[1:]) - 1)
            batch.last_layer = batch.of_last_tokens(lambda x: x.index_select(0, last))
        return ComputedStep(self._model.forward(batch, self._kv.layers), (batch.last_layer or batch).query_starts)

    def _gather(self, plans: list[RowPlan], rows: list[Row]) -> ForwardBatch:
        """Token ids, positions, block tables and KV slots of the planned ranges, all by array indexing."""
        table_rows = np.array([row.table_row for row in rows])
        starts = np.array([row_plan.start for row_plan in plans])
        counts = np.array([row_plan.num_tokens for row_plan in plans])
        ends = np.cumsum(counts)
        context_lens = starts + counts
        row_of_token = np.repeat(np.arange(len(rows)), counts)
        positions = np.arange(ends[-1]) - np.repeat(ends - counts - starts, counts)
        width = -(-int(context_lens.max()) // self._block_size)
        groups = []
        for table in self._table.tables:
            tables = table[table_rows, :width]
            blocks = tables[row_of_token, positions // self._block_size]
            slots = blocks * self._block_size + positions % self._block_size
            groups.append(RowBlocks(self._tensors.of(tables), self._tensors.of(slots)))
        return ForwardBatch(
            token_ids=self._tensors.of(self._table.tokens[table_rows[row_of_token], positions]),
            positions=self._tensors.of(positions),
            query_starts=[0, *ends.tolist()],
            context_lens=context_lens.tolist(),
            groups=groups,
            layer_groups=self._layer_groups,
        )
