"""Steps as programs that were recorded once and run for any number of tokens (kernels/recording.py)."""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from quire.config import MAX_RECORDED_TOKENS as MAX_TOKENS
from quire.core.step import StepPlan
from quire.kernels import native_module
from quire.kernels.array import Array
from quire.kernels.fresh_memory import LargePages
from quire.kernels.native_steps import most_likely
from quire.kernels.recording import Arena, NotRecordable, Recording
from quire.models.decoder import Decoder
from quire.sampling.distribution import MostLikely
from quire.worker.computed_step import ComputedStep
from quire.worker.kv_cache import KVCache
from quire.worker.program_inputs import ProgramInputs
from quire.worker.row_table import Row, RowTable, all_hidden_wanted

logger = logging.getLogger("quire")

MAX_ROWS_TO_LOGITS = 64
"""Those of more would take as much memory as all the rest."""

MAX_ROWS_TO_SEARCH = 4
"""Of those whose most likely tokens are wanted, and no logits: with more a search multiplies too much (docs/lab.md)."""


@dataclass(frozen=True, slots=True)
class AllTokens:
    """`hidden` is that of all tokens. `computed`: what the program wrote when it was run for this step."""

    recording: Recording
    hidden: Array

    def computed(self, plan: StepPlan) -> ComputedStep:
        return ComputedStep(self.hidden[: plan.num_tokens], [0, *accumulate(row.num_tokens for row in plan.rows)])


@dataclass(frozen=True, slots=True)
class LastTokens:
    """Of each row's last token: `hidden`; perhaps `logits`; perhaps `best`, the most likely token after it and its logit."""

    recording: Recording
    hidden: Array
    best: tuple[Array, Array] | None = None
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
        return ComputedStep(
            self.hidden[:num_rows],
            list(range(num_rows + 1)),
            None if self.logits is None else self.logits.stored[:num_rows],
            None if self.best is None else _reader(self.best, num_rows),
        )


def _reader(best: tuple[Array, Array], num_rows: int) -> Callable[[], MostLikely]:
    # To read a few numbers through numpy takes ten times as long.
    token_ids, largest = (array.stored[:num_rows].data for array in best)
    return lambda: MostLikely(token_ids.tolist(), largest.tolist())


class Wanted(enum.IntEnum):
    """What a program finds of each row's last token, beside its hidden states."""

    NOTHING = enum.auto()
    LOGITS = enum.auto()
    """All, and the most likely token."""
    MOST_LIKELY = enum.auto()
    """The token alone."""
    SEARCHED = enum.auto()
    """The same, by a search in which few logits are computed."""


class StepPrograms:
    """Each is recorded when it is first wanted, for rows of one token each or of any number: from token ids to the logits of last tokens,
    or to the most likely tokens where nobody looks at logits, for a few rows by a search; or to hidden states, of last tokens or of all."""

    def __init__(
        self,
        model: Decoder,
        kv: KVCache,
        table: RowTable,
        max_num_seqs: int,
        max_model_len: int,
        *,
        large_pages: bool,
    ) -> None:
        self._model = model
        self._needs_logits = model.head.needs_logits
        self._kv = kv
        self._table = table
        # Fewer than tokens: by its number a kernel's program knows what it is of.
        self._max_rows = min(max_num_seqs, MAX_TOKENS - 1)
        self._max_model_len = max_model_len
        self._inputs: ProgramInputs | None = None
        self._can_search = False
        self._last_tokens: dict[tuple[bool, Wanted], LastTokens] = {}
        """By whether rows have one token each, and by what is wanted."""
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
        assert self._inputs is not None, "a program was recorded with them"
        self._inputs.fill(self._table, plan.rows, rows)
        native_module.run(program.recording, (num_tokens, num_rows))
        return program.computed(plan)

    def _program_for(self, plan: StepPlan, rows: list[Row]) -> AllTokens | LastTokens:
        one_token = plan.num_tokens == len(rows) <= MAX_ROWS_TO_LOGITS
        if not one_token and all_hidden_wanted(plan.rows, rows):
            return self._all_tokens_program()
        kind = one_token, self._wanted(plan, rows, one_token=one_token)
        program = self._last_tokens.get(kind)
        if program is None:
            program = self._last_tokens[kind] = self._record(*kind)
        return program

    def _wanted(self, plan: StepPlan, rows: list[Row], *, one_token: bool) -> Wanted:
        wanted = Wanted.NOTHING
        for row_plan, row in zip(plan.rows, rows, strict=True):
            if row_plan.samples:
                wanted = Wanted.MOST_LIKELY
                if self._needs_logits or not row.sampling.takes_most_likely:
                    return Wanted.LOGITS if len(rows) <= MAX_ROWS_TO_LOGITS else Wanted.NOTHING
        if wanted is Wanted.MOST_LIKELY and one_token and len(rows) <= MAX_ROWS_TO_SEARCH:
            self._can_search = self._can_search or self._model.head.prepare_search()
            return Wanted.SEARCHED if self._can_search else wanted
        return wanted

    def _record(self, one_token: bool, wanted: Wanted) -> LastTokens:
        num_rows, inputs = min(_most_rows(one_token, wanted), self._max_rows), self._prepared_inputs()
        if one_token:
            batch, recording = inputs.batch(num_rows, num_rows), native_module.new_recording(self._arena)
        else:
            batch = inputs.batch_of_last_tokens(MAX_TOKENS, num_rows)
            recording = native_module.new_recording(self._arena, num_rows)
        logits: Any = None
        best: tuple[Any, Any] | None = None
        with recording:
            hidden: Any = self._model.forward(batch, self._kv.layers)
            match wanted:
                case Wanted.LOGITS:
                    logits = self._model.head.logits(hidden)
                    best = most_likely(logits)
                case Wanted.MOST_LIKELY:
                    best = self._model.head.most_likely(hidden)
                case Wanted.SEARCHED:
                    best = self._model.head.search_for(hidden)
                case Wanted.NOTHING:
                    pass
        return LastTokens(
            recording,
            _lent(hidden),
            None if best is None else (_lent(best[0]), _lent(best[1])),
            None if logits is None else _lent(logits),
        )

    def _all_tokens_program(self) -> AllTokens:
        if self._all_tokens is None:
            batch = self._prepared_inputs().batch(MAX_TOKENS, self._max_rows)
            recording = native_module.new_recording(self._arena)
            with recording:
                hidden: Any = self._model.forward(batch, self._kv.layers)
            self._all_tokens = AllTokens(recording, _lent(hidden))
        return self._all_tokens

    def _prepared_inputs(self) -> ProgramInputs:
        if self._inputs is None:
            # Tables that grow would move.
            self._model.prepare(self._max_model_len)
            self._inputs = ProgramInputs(self._kv.config, MAX_TOKENS, self._max_rows, self._max_model_len)
        return self._inputs


def _most_rows(one_token: bool, wanted: Wanted) -> int:
    if wanted is Wanted.SEARCHED:
        return MAX_ROWS_TO_SEARCH
    return MAX_ROWS_TO_LOGITS if one_token or wanted is Wanted.LOGITS else MAX_TOKENS


def _lent(array: Array) -> Array:
    """Without its owner: a step is read before the next one, whose program may use the same memory."""
    return Array(array.stored, array.dtype)
