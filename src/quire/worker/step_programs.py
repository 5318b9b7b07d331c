"""Steps in which every row computes one token, run as programs that were recorded once (kernels/recording.py)."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np

from quire.attention.forward_batch import ForwardBatch, RowBlocks
from quire.core.step import RowPlan
from quire.kernels import native
from quire.kernels.array import Array
from quire.kernels.dtype import DType
from quire.kernels.recording import Arena, NotRecordable, Recording
from quire.models.registry import Model
from quire.worker.computed_step import ComputedStep
from quire.worker.kv_cache import KVCache
from quire.worker.row_table import Row, RowTable

logger = logging.getLogger("quire")

MAX_ROWS = 64
"""Beyond, the operators take so long that Python beside them does not matter, and every count would be one more program."""


@dataclass(frozen=True, slots=True)
class StepProgram:
    """`batch` holds the arrays that the program reads, `step` those that it writes."""

    batch: ForwardBatch
    context_lens: Array
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
        self._inputs: ForwardBatch | None = None
        """For MAX_ROWS rows; a program for n rows reads the first n."""
        self._arena = Arena()
        self._recordable = True

    def compute(self, plans: list[RowPlan], rows: list[Row]) -> ComputedStep | None:
        """None for a step that has to go through Python."""
        num_rows = len(plans)
        if not self._recordable or num_rows > MAX_ROWS or any(row_plan.num_tokens != 1 for row_plan in plans):
            return None
        program = self._programs.get(num_rows)
        if program is None:
            try:
                program = self._programs[num_rows] = self._record(num_rows)
            except NotRecordable as operator:
                logger.info("Every step goes through Python: %s has no native kernel.", operator)
                self._recordable = False
                return None
        self._fill(program, [row_plan.start for row_plan in plans], [row.table_row for row in rows])
        native.run(program.recording)
        return program.step

    def _fill(self, program: StepProgram, starts: list[int], table_rows: list[int]) -> None:
        """Gather what the program reads, in place."""
        batch, size = program.batch, self._block_size
        positions, of_row = np.array(starts), np.array(table_rows)
        batch.positions.stored[:] = positions
        np.add(positions, 1, out=program.context_lens.stored)
        batch.token_ids.stored[:] = self._table.tokens[of_row, positions]
        numbers, offsets = np.divmod(positions, size)
        for blocks, table in zip(batch.groups, self._table.tables, strict=True):
            table.take(of_row, axis=0, out=blocks.block_tables.stored, mode="clip")
            blocks.slots.stored[:] = table[of_row, numbers] * size + offsets

    def _record(self, num_rows: int) -> StepProgram:
        batch = self._first_rows(num_rows)
        recording = native.new_recording(self._arena)
        with recording:
            hidden = self._model.forward(batch, self._kv.layers)
            logits = self._model.logits(hidden)
        # Without their owners: a step is read before the next one, whose program may use the same memory.
        step = ComputedStep(Array(hidden.stored, hidden.dtype), batch.query_starts, Array(logits.stored, logits.dtype))
        return StepProgram(batch, batch.scratch["cpu"][1], recording, step)

    def _first_rows(self, num_rows: int) -> ForwardBatch:
        """The tensors that a program for so many rows reads."""
        if self._inputs is None:
            # Tables that grow would move.
            self._model.prepare(self._max_model_len)
            self._inputs = self._make_inputs()
        whole = self._inputs
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

    def _make_inputs(self) -> ForwardBatch:
        def numbers(*shape: int) -> Array:
            return Array(np.zeros(shape, np.int64), DType.INT64)

        def count(end: int) -> Array:
            return Array(np.arange(end), DType.INT64)

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
            scratch={"cpu": (count(MAX_ROWS + 1), numbers(MAX_ROWS))},
        )
