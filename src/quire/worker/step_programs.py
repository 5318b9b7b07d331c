"""Steps as programs that were recorded once and run for any number of tokens (kernels/recording.py)."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from itertools import accumulate

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

MAX_TOKENS = 512
"""Beyond, the operators take so long that Python beside them does not matter."""
MAX_ROWS_TO_LOGITS = 64
"""Of rows that compute one token each: logits of more would take as much memory as all the rest."""


MAX_ROWS_TO_SEARCH = 4
"""Of those whose most likely tokens are wanted, and no logits: with more a search multiplies too much (docs/lab.md)."""


@dataclass(slots=True)
class StepProgram:
    """What it writes: hidden states, and perhaps the logits and most likely tokens of all of them, or only these tokens."""

    recording: Recording
    hidden: Array
    logits: Array | None = None
    best: tuple[Array, Array] | None = None
    steps: dict[int, ComputedStep] = field(default_factory=dict)
    """Of rows of one token each, by how many there are."""

    def chunks(self, query_starts: list[int]) -> ComputedStep:
        return ComputedStep(self.hidden[: query_starts[-1]], query_starts)

    def decodes(self, num_rows: int) -> ComputedStep:
        step = self.steps.get(num_rows)
        if step is None:
            step = self.steps[num_rows] = self._decodes(num_rows)
        return step

    def _decodes(self, num_rows: int) -> ComputedStep:
        assert self.best is not None
        # To read a few numbers through numpy takes ten times as long.
        token_ids, largest = (array.stored[:num_rows].data for array in self.best)
        return ComputedStep(
            self.hidden[:num_rows],
            list(range(num_rows + 1)),
            None if self.logits is None else self.logits.stored[:num_rows],
            lambda: MostLikely(token_ids.tolist(), largest.tolist()),
        )


class StepPrograms:
    """Three, each recorded when it is first wanted: one for rows of one token each, from token ids to the most likely tokens; one
    that finds these without all logits, for a few such rows; and one for any rows, to the hidden states."""

    def __init__(
        self,
        model: Model,
        kv: KVCache,
        table: RowTable,
        layer_groups: list[int],
        block_size: int,
        max_num_seqs: int,
        max_model_len: int,
    ) -> None:
        self._model = model
        self._kv = kv
        self._table = table
        self._layer_groups = layer_groups
        self._block_size = block_size
        self._max_rows = min(max_num_seqs, MAX_TOKENS)
        self._max_model_len = max_model_len
        self._max_blocks = -(-max_model_len // block_size)
        self._decodes: StepProgram | None = None
        self._searches: StepProgram | None = None
        self._chunks: StepProgram | None = None
        self._batch: ForwardBatch | None = None
        self._inputs: StepInputs | None = None
        self._arena = Arena()
        self._recordable = True

    def compute(self, plan: StepPlan, rows: list[Row]) -> ComputedStep | None:
        """None for a step that has to go through Python."""
        num_tokens, num_rows = plan.num_tokens, len(rows)
        if num_tokens > MAX_TOKENS or num_rows > self._max_rows or not self._recordable:
            return None
        decodes = num_tokens == num_rows <= MAX_ROWS_TO_LOGITS
        try:
            program = self._program_for(rows) if decodes else self._chunk_program()
        except NotRecordable as operator:
            logger.info("Every step goes through Python: %s has no native kernel.", operator)
            self._recordable = False
            return None
        assert self._inputs is not None
        table_rows, starts = [row.table_row for row in rows], [row_plan.start for row_plan in plan.rows]
        counts = [row_plan.num_tokens for row_plan in plan.rows]
        self._inputs.fill(self._table.tokens, self._table.tables, table_rows, starts, counts)
        native.run(program.recording, (num_tokens, num_rows))
        return program.decodes(num_rows) if decodes else program.chunks([0, *accumulate(counts)])

    def _program_for(self, rows: list[Row]) -> StepProgram:
        """That compute one token each."""
        few = len(rows) <= MAX_ROWS_TO_SEARCH and all(row.sampling.takes_most_likely for row in rows)
        return self._search_program() if few and self._model.prepare_search() else self._decode_program()

    def _search_program(self) -> StepProgram:
        if self._searches is None:
            num_rows = min(MAX_ROWS_TO_SEARCH, self._max_rows)
            batch = self._first(num_rows, num_rows)
            recording = native.new_recording(self._arena)
            with recording:
                hidden = self._model.forward(batch, self._kv.layers)
                best = self._model.most_likely(hidden)
            self._searches = StepProgram(recording, _lent(hidden), best=(_lent(best[0]), _lent(best[1])))
        return self._searches

    def _decode_program(self) -> StepProgram:
        if self._decodes is None:
            batch = self._first(min(MAX_ROWS_TO_LOGITS, self._max_rows), min(MAX_ROWS_TO_LOGITS, self._max_rows))
            recording = native.new_recording(self._arena)
            with recording:
                hidden = self._model.forward(batch, self._kv.layers)
                logits = self._model.logits(hidden)
                best = most_likely(logits)
            self._decodes = StepProgram(recording, _lent(hidden), _lent(logits), (_lent(best[0]), _lent(best[1])))
        return self._decodes

    def _chunk_program(self) -> StepProgram:
        if self._chunks is None:
            batch = self._first(MAX_TOKENS, self._max_rows)
            recording = native.new_recording(self._arena)
            with recording:
                hidden = self._model.forward(batch, self._kv.layers)
            self._chunks = StepProgram(recording, _lent(hidden))
        return self._chunks

    def _first(self, num_tokens: int, num_rows: int) -> ForwardBatch:
        """The arrays that a program for so many of both reads."""
        if self._batch is None:
            # Tables that grow would move.
            self._model.prepare(self._max_model_len)
            self._batch = self._make_batch()
            query_starts, context_lens = self._batch.scratch["cpu"]
            self._inputs = StepInputs(
                self._batch.token_ids,
                self._batch.positions,
                query_starts,
                context_lens,
                [(group.block_tables, group.slots) for group in self._batch.groups],
                self._block_size,
            )
        whole = self._batch
        query_starts, context_lens = whole.scratch["cpu"]
        return ForwardBatch(
            token_ids=whole.token_ids[:num_tokens],
            positions=whole.positions[:num_tokens],
            query_starts=[*range(num_rows), num_tokens],
            context_lens=whole.context_lens[:num_rows],
            groups=[RowBlocks(group.block_tables[:num_rows], group.slots[:num_tokens]) for group in whole.groups],
            layer_groups=self._layer_groups,
            scratch={"cpu": (query_starts[: num_rows + 1], context_lens[:num_rows])},
        )

    def _make_batch(self) -> ForwardBatch:
        """For the most that a program can do; one that does less reads the first of each."""

        def numbers(*shape: int) -> Array:
            return Array(np.zeros(shape, np.int64), DType.INT64)

        return ForwardBatch(
            token_ids=numbers(MAX_TOKENS),
            positions=numbers(MAX_TOKENS),
            query_starts=[*range(self._max_rows), MAX_TOKENS],
            context_lens=[self._max_model_len] * self._max_rows,
            groups=[
                RowBlocks(numbers(self._max_rows, self._max_blocks), numbers(MAX_TOKENS))
                for _ in range(max(self._layer_groups) + 1)
            ],
            layer_groups=self._layer_groups,
            scratch={"cpu": (numbers(self._max_rows + 1), numbers(self._max_rows))},
        )


def _lent(array: Array) -> Array:
    """Without its owner: a step is read before the next one, whose program may use the same memory."""
    return Array(array.stored, array.dtype)
