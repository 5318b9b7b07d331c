"""Steps in which every row computes one token, run as programs that were recorded once (kernels/recording.py)."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np

from quire.attention.forward_batch import ForwardBatch, RowBlocks
from quire.core.step import StepPlan
from quire.kernels import native
from quire.kernels.array import Array
from quire.kernels.dtype import DType
from quire.kernels.native_steps import StepInputs, most_likely
from quire.kernels.recording import Arena, NotRecordable, Recording
from quire.models.registry import Model
from quire.sampling.distribution import MostLikely
from quire.worker.computed_step import ComputedStep
from quire.worker.kv_cache import KVCache
from quire.worker.row_table import Row, RowTable

logger = logging.getLogger("quire")

MAX_ROWS = 64
"""Beyond, the operators take so long that Python beside them does not matter, and every count would be one more program."""


@dataclass(frozen=True, slots=True)
class StepProgram:
    """`step` holds the arrays that the program writes."""

    recording: Recording
    step: ComputedStep


class StepPrograms:
    """One program for each number of rows, recorded when it is first wanted: from token ids to logits."""

    def __init__(
        self,
        model: Model,
        kv: KVCache,
        table: RowTable,
        layer_groups: list[int],
        block_size: int,
        max_model_len: int,
    ) -> None:
        self._model = model
        self._kv = kv
        self._table = table
        self._layer_groups = layer_groups
        self._block_size = block_size
        self._max_model_len = max_model_len
        self._max_blocks = -(-max_model_len // block_size)
        self._programs: dict[int, StepProgram] = {}
        self._batch: ForwardBatch | None = None
        self._inputs: StepInputs | None = None
        self._arena = Arena()
        self._recordable = True

    def compute(self, plan: StepPlan, rows: list[Row]) -> ComputedStep | None:
        """None for a step that has to go through Python."""
        num_rows = len(rows)
        # A row has one token at least.
        if plan.num_tokens != num_rows or num_rows > MAX_ROWS or not self._recordable:
            return None
        program = self._programs.get(num_rows)
        if program is None:
            try:
                program = self._programs[num_rows] = self._record(num_rows)
            except NotRecordable as operator:
                logger.info("Every step goes through Python: %s has no native kernel.", operator)
                self._recordable = False
                return None
        assert self._inputs is not None
        table_rows, starts = [row.table_row for row in rows], [row_plan.start for row_plan in plan.rows]
        self._inputs.fill(self._table.tokens, self._table.tables, table_rows, starts)
        native.run(program.recording)
        return program.step

    def _record(self, num_rows: int) -> StepProgram:
        batch = self._first_rows(num_rows)
        recording = native.new_recording(self._arena)
        with recording:
            hidden = self._model.forward(batch, self._kv.layers)
            logits = self._model.logits(hidden)
            best = most_likely(logits)
        # Without owners: a step is read before the next one, whose program may use the same memory.
        hidden = Array(hidden.stored, hidden.dtype)
        # To read a few numbers through numpy takes ten times as long.
        token_ids, largest = (array.stored.data for array in best)
        return StepProgram(
            recording,
            ComputedStep(
                hidden, batch.query_starts, logits.stored, lambda: MostLikely(token_ids.tolist(), largest.tolist())
            ),
        )

    def _first_rows(self, num_rows: int) -> ForwardBatch:
        """The arrays that a program for so many rows reads."""
        if self._batch is None:
            # Tables that grow would move.
            self._model.prepare(self._max_model_len)
            self._batch = self._make_batch()
            groups = [(group.block_tables, group.slots) for group in self._batch.groups]
            self._inputs = StepInputs(
                self._batch.token_ids, self._batch.positions, self._batch.scratch["cpu"][1], groups, self._block_size
            )
        whole = self._batch
        query_starts, context_lens = whole.scratch["cpu"]
        return ForwardBatch(
            token_ids=whole.token_ids[:num_rows],
            positions=whole.positions[:num_rows],
            query_starts=whole.query_starts[: num_rows + 1],
            context_lens=whole.context_lens[:num_rows],
            groups=[RowBlocks(group.block_tables[:num_rows], group.slots[:num_rows]) for group in whole.groups],
            layer_groups=self._layer_groups,
            scratch={"cpu": (query_starts[: num_rows + 1], context_lens[:num_rows])},
        )

    def _make_batch(self) -> ForwardBatch:
        """For MAX_ROWS rows; a program for n rows reads the first n."""

        def numbers(*shape: int) -> Array:
            return Array(np.zeros(shape, np.int64), DType.INT64)

        return ForwardBatch(
            token_ids=numbers(MAX_ROWS),
            positions=numbers(MAX_ROWS),
            query_starts=list(range(MAX_ROWS + 1)),
            context_lens=[self._max_model_len] * MAX_ROWS,
            groups=[
                RowBlocks(numbers(MAX_ROWS, self._max_blocks), numbers(MAX_ROWS))
                for _ in range(max(self._layer_groups) + 1)
            ],
            layer_groups=self._layer_groups,
            scratch={"cpu": (Array(np.arange(MAX_ROWS + 1), DType.INT64), numbers(MAX_ROWS))},
        )
