"""Steps in which every row computes one token, run as programs that were recorded once (kernels/recording.py)."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch

from quire.attention.forward_batch import ForwardBatch, RowBlocks
from quire.kernels import native
from quire.kernels.recording import NotRecordable, Recording
from quire.models.registry import Model
from quire.worker.kv_cache import KVCache

logger = logging.getLogger("quire")

MAX_ROWS = 64
"""Beyond, the operators take so long that Python beside them does not matter, and every count would be one more program."""


@dataclass(frozen=True, slots=True)
class StepProgram:
    """`batch` holds the tensors that the program reads, `hidden` what it writes."""

    batch: ForwardBatch
    context_lens: torch.Tensor
    recording: Recording
    hidden: torch.Tensor

    def run(self, batch: ForwardBatch) -> torch.Tensor:
        """Hidden states [T, D], until the next run."""
        self.batch.token_ids.copy_(batch.token_ids)
        self.batch.positions.copy_(batch.positions)
        self.context_lens.copy_(torch.tensor(batch.context_lens))
        for own, given in zip(self.batch.groups, batch.groups, strict=True):
            own.slots.copy_(given.slots)
            own.block_tables[:, : given.block_tables.shape[1]].copy_(given.block_tables)
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
        self._recordable = True
        self._prepared = False

    def forward(self, batch: ForwardBatch) -> torch.Tensor | None:
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
        if not self._prepared:
            # Tables that grow would move.
            self._model.prepare(self._max_model_len)
            self._prepared = True
        context_lens = torch.zeros(num_rows, dtype=torch.int64)
        batch = ForwardBatch(
            token_ids=torch.zeros(num_rows, dtype=torch.int64),
            positions=torch.zeros(num_rows, dtype=torch.int64),
            query_starts=list(range(num_rows + 1)),
            context_lens=[self._max_model_len] * num_rows,
            groups=[self._blocks(num_rows) for _ in range(max(self._layer_groups) + 1)],
            layer_groups=self._layer_groups,
            logits_indices=torch.arange(num_rows),
        )
        batch.scratch["cpu"] = (torch.arange(num_rows + 1), context_lens)
        recording = native.new_recording()
        with recording:
            hidden = self._model.forward(batch, self._kv.layers)
        return StepProgram(batch, context_lens, recording, hidden)

    def _blocks(self, num_rows: int) -> RowBlocks:
        tables = torch.zeros(num_rows, self._max_blocks, dtype=torch.int64)
        return RowBlocks(tables, torch.zeros(num_rows, dtype=torch.int64))
