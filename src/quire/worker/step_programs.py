"""Steps as programs that were recorded once and run for any number of tokens (kernels/recording.py)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Protocol

from quire.config import OFFLINE_BATCHED_TOKENS
from quire.core.step import StepPlan
from quire.kernels import native
from quire.kernels.array import Array
from quire.kernels.fresh_memory import LargePages
from quire.kernels.native_steps import most_likely
from quire.kernels.recording import Arena, NotRecordable, Recording
from quire.models.registry import Model
from quire.sampling.distribution import MostLikely
from quire.worker.computed_step import ComputedStep
from quire.worker.kv_cache import KVCache
from quire.worker.program_inputs import ProgramInputs
from quire.worker.row_table import Row, RowTable, all_hidden_wanted

logger = logging.getLogger("quire")

MAX_TOKENS = OFFLINE_BATCHED_TOKENS
"""Beyond, the operators take so long that Python beside them does not matter."""
MAX_ROWS_TO_TOKENS = 64
"""Of rows that compute one token each: logits of more would take as much memory as all the rest."""

MAX_ROWS_TO_SEARCH = 4
"""Of those whose most likely tokens are wanted, and no logits: with more a search multiplies too much (docs/lab.md)."""


class StepProgram(Protocol):
    @property
    def recording(self) -> Recording: ...

    def computed(self, plan: StepPlan) -> ComputedStep:
        """What it wrote when it was run for this step."""


@dataclass(frozen=True, slots=True)
class AllTokens:
    """`hidden` is that of all tokens."""

    recording: Recording
    hidden: Array

    def computed(self, plan: StepPlan) -> ComputedStep:
        return ComputedStep(self.hidden[: plan.num_tokens], [0, *accumulate(row.num_tokens for row in plan.rows)])


@dataclass(frozen=True, slots=True)
class LastTokens:
    """`hidden` is that of each row's last token."""

    recording: Recording
    hidden: Array

    def computed(self, plan: StepPlan) -> ComputedStep:
        num_rows = len(plan.rows)
        return ComputedStep(self.hidden[:num_rows], list(range(num_rows + 1)))


@dataclass(frozen=True, slots=True)
class OneToken:
    """Of rows that compute one token each: `hidden` is that of all, `best` the most likely token after each and its logit."""

    recording: Recording
    hidden: Array
    best: tuple[Array, Array]
    logits: Array | None = None
    steps: dict[int, ComputedStep] = field(default_factory=dict)
    """By the number of rows."""

    def computed(self, plan: StepPlan) -> ComputedStep:
        num_rows = len(plan.rows)
        step = self.steps.get(num_rows)
        if step is None:
            step = self.steps[num_rows] = self._of_rows(num_rows)
        return step

    def _of_rows(self, num_rows: int) -> ComputedStep:
        # To read a few numbers through numpy takes ten times as long.
        token_ids, largest = (array.stored[:num_rows].data for array in self.best)
        return ComputedStep(
            self.hidden[:num_rows],
            list(range(num_rows + 1)),
            None if self.logits is None else self.logits.stored[:num_rows],
            lambda: MostLikely(token_ids.tolist(), largest.tolist()),
        )


class StepPrograms:
    """Five, each recorded when it is first wanted. For rows of one token each: from token ids to logits and the most likely tokens;
    where nobody looks at logits, to these alone; for a few rows, to these by a search. For any rows: to the hidden states of each
    row's last token; and of all tokens."""

    def __init__(
        self,
        model: Model,
        kv: KVCache,
        table: RowTable,
        layer_groups: list[int],
        block_size: int,
        max_num_seqs: int,
        max_model_len: int,
        *,
        large_pages: bool,
    ) -> None:
        self._model = model
        self._kv = kv
        self._table = table
        self._layer_groups = layer_groups
        self._block_size = block_size
        # Fewer than tokens: by its number a kernel's program knows what it is of.
        self._max_rows = min(max_num_seqs, MAX_TOKENS - 1)
        self._max_model_len = max_model_len
        self._made_inputs: ProgramInputs | None = None
        self._decodes: OneToken | None = None
        self._greedy: OneToken | None = None
        self._searches: OneToken | None = None
        self._last_tokens: LastTokens | None = None
        self._all_tokens: AllTokens | None = None
        self._arena = Arena(LargePages() if large_pages else None)
        self._recordable = True

    def compute(self, plan: StepPlan, rows: list[Row]) -> ComputedStep | None:
        """None for a step that has to go through Python."""
        num_tokens, num_rows = plan.num_tokens, len(rows)
        if num_tokens > MAX_TOKENS or num_rows > self._max_rows or not self._recordable:
            return None
        try:
            program = self._program_for(plan, rows)
        except NotRecordable as operator:
            logger.info("Every step goes through Python: %s has no native kernel.", operator)
            self._recordable = False
            return None
        self._inputs().fill(self._table, plan.rows, rows)
        native.run(program.recording, (num_tokens, num_rows))
        return program.computed(plan)

    def _program_for(self, plan: StepPlan, rows: list[Row]) -> StepProgram:
        if plan.num_tokens == len(rows) <= MAX_ROWS_TO_TOKENS:
            if self._model.needs_logits or not all(row.sampling.takes_most_likely for row in rows):
                return self._decode_program()
            few = len(rows) <= MAX_ROWS_TO_SEARCH
            return self._search_program() if few and self._model.prepare_search() else self._greedy_program()
        return self._all_tokens_program() if all_hidden_wanted(plan.rows, rows) else self._last_tokens_program()

    def _search_program(self) -> OneToken:
        if self._searches is None:
            self._searches = self._record_to_tokens(MAX_ROWS_TO_SEARCH, self._model.search_for)
        return self._searches

    def _greedy_program(self) -> OneToken:
        if self._greedy is None:
            self._greedy = self._record_to_tokens(MAX_ROWS_TO_TOKENS, self._model.most_likely)
        return self._greedy

    def _decode_program(self) -> OneToken:
        if self._decodes is None:
            self._decodes = self._record_to_tokens(MAX_ROWS_TO_TOKENS)
        return self._decodes

    def _record_to_tokens(self, max_rows: int, find: Callable[[Any], tuple[Array, Array]] | None = None) -> OneToken:
        """`find`: the most likely tokens, and their logits, after hidden states. Without it all logits are kept."""
        num_rows = min(max_rows, self._max_rows)
        batch = self._inputs().batch(num_rows, num_rows)
        recording = native.new_recording(self._arena)
        logits: Any = None
        with recording:
            hidden = self._model.forward(batch, self._kv.layers)
            if find is None:
                logits = self._model.logits(hidden)
            token_ids, largest = most_likely(logits) if find is None else find(hidden)
        return OneToken(
            recording, _lent(hidden), (_lent(token_ids), _lent(largest)), None if logits is None else _lent(logits)
        )

    def _last_tokens_program(self) -> LastTokens:
        if self._last_tokens is None:
            batch = self._inputs().batch_of_last_tokens(MAX_TOKENS, self._max_rows)
            recording = native.new_recording(self._arena, self._max_rows)
            with recording:
                hidden = self._model.forward(batch, self._kv.layers)
            self._last_tokens = LastTokens(recording, _lent(hidden))
        return self._last_tokens

    def _all_tokens_program(self) -> AllTokens:
        if self._all_tokens is None:
            batch = self._inputs().batch(MAX_TOKENS, self._max_rows)
            recording = native.new_recording(self._arena)
            with recording:
                hidden = self._model.forward(batch, self._kv.layers)
            self._all_tokens = AllTokens(recording, _lent(hidden))
        return self._all_tokens

    def _inputs(self) -> ProgramInputs:
        if self._made_inputs is None:
            # Tables that grow would move.
            self._model.prepare(self._max_model_len)
            self._made_inputs = ProgramInputs(
                self._layer_groups, self._block_size, MAX_TOKENS, self._max_rows, self._max_model_len
            )
        return self._made_inputs


def _lent(array: Array) -> Array:
    """Without its owner: a step is read before the next one, whose program may use the same memory."""
    return Array(array.stored, array.dtype)
