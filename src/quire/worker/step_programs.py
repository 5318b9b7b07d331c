"""Steps in which every row computes one token, run as programs that were recorded once (kernels/recording.py)."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np

from quire.attention.forward_batch import ForwardBatch, RowBlocks
from quire.kernels import native
from quire.kernels.array import Array
from quire.kernels.dtype import DType
from quire.kernels.recording import Arena, NotRecordable, Recording
from quire.models.registry import Model
from quire.worker.kv_cache import KVCache

logger = logging.getLogger("quire")

MAX_ROWS = 64
"""Beyond, the operators take so long that Python beside them does not matter, and every count would be one more program."""


@dataclass(frozen=True, slots=True)
class StepProgram:
    """`batch` holds the tensors that the program reads, `hidden` what it writes."""

    batch: ForwardBatch
    context_lens: Array
    recording: Recording
    hidden: Array

    def run(self, batch: ForwardBatch) -> Array:
        """Hidden states [T, D], until the next run."""
        self.batch.token_ids.stored[:] = batch.token_ids.stored
        self.batch.positions.stored[:] = batch.positions.stored
        self.context_lens.stored[:] = batch.context_lens
        for own, given in zip(self.batch.groups, batch.groups, strict=True):
            own.slots.stored[:] = given.slots.stored
            own.block_tables.stored[:, : given.block_tables.shape[1]] = given.block_tables.stored
        native.run(self.recording)
        return self.hidden


class StepPrograms:
    """One program for each number of rows, recorded when it is first wanted."""

    def __init__(self, model: Model, kv: KVCache, layer_groups: list[int], max_model_len: int, block_size: int) -> None:
        self._model = model
        self._kv = kv
        self._layer_groups = layer_groups
        self._max_model_len = max_model_len
        self._max_blocks = -(-max_model_len // block_size)
        self._programs: dict[int, StepProgram] = {}
        self._inputs: ForwardBatch | None = None
        """For MAX_ROWS rows; a program for n rows reads the first n."""
        self._arena = Arena()
        self._recordable = True

    def forward(self, batch: ForwardBatch) -> Array | None:
        """As the model's; None for a step that has to go through Python."""
        num_rows = batch.num_rows
        if not self._recordable or num_rows > MAX_ROWS or batch.num_tokens != num_rows:
            return None
        if num_rows not in self._programs:
            try:
                self._programs[num_rows] = self._record(num_rows)
            except NotRecordable as operator:
                logger.info("Every step goes through Python: %s has no native kernel.", operator)
                self._recordable = False
                return None
        return self._programs[num_rows].run(batch)

    def _record(self, num_rows: int) -> StepProgram:
        batch = self._first_rows(num_rows)
        recording = native.new_recording(self._arena)
        with recording:
            hidden = self._model.forward(batch, self._kv.layers)
        return StepProgram(batch, batch.scratch["cpu"][1], recording, hidden)

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
            logits_indices=whole.logits_indices[:num_rows],
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
            logits_indices=count(MAX_ROWS),
            scratch={"cpu": (count(MAX_ROWS + 1), numbers(MAX_ROWS))},
        )
