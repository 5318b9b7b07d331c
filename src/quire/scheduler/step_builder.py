"""From ranges of sequences to a StepPlan: which rows the worker must add, keep and drop."""

from __future__ import annotations

from quire.cache.kv_cache_manager import KVCacheManager
from quire.core.sequence import Sequence
from quire.core.step import NewRow, RowPlan, StepPlan


class StepBuilder:
    """Collects one step at a time, and knows from step to step which rows the worker holds."""

    def __init__(self, kv: KVCacheManager) -> None:
        self._sequences: list[Sequence] = []
        """The sequence of each row of the step being built."""
        self._kv = kv
        self._step_id = 0
        self._rows: list[RowPlan] = []
        self._new_rows: list[NewRow] = []
        self._num_tokens = 0
        self._released_seq_ids: list[int] = []
        self._worker_rows: set[int] = set()

    def add_row(
        self, sequence: Sequence, start: int, end: int, samples: bool, new_block_ids: list[list[int]] | None
    ) -> None:
        """Compute tokens [start, end) of a sequence; `new_block_ids` were appended to its tables for that."""
        seq_id = sequence.seq_id
        if seq_id not in self._worker_rows:
            self._worker_rows.add(seq_id)
            self._new_rows.append(self._new_row(sequence))
            new_block_ids = None
        self._rows.append(RowPlan(seq_id, start, end - start, samples, new_block_ids or None))
        self._sequences.append(sequence)
        self._num_tokens += end - start

    def release_row(self, sequence: Sequence) -> None:
        """The worker drops the row, if it has one, before the next step; until there is one, the word is kept."""
        if sequence.seq_id in self._worker_rows:
            self._worker_rows.remove(sequence.seq_id)
            self._released_seq_ids.append(sequence.seq_id)

    def build(self) -> tuple[StepPlan, list[Sequence]] | None:
        """The step and the sequence of each of its rows; None if it has no rows."""
        if not self._rows:
            return None
        plan = StepPlan(
            step_id=self._step_id,
            rows=self._rows,
            new_rows=self._new_rows,
            released_seq_ids=self._released_seq_ids,
            block_copies=self._kv.take_copies(),
            num_tokens=self._num_tokens,
        )
        sequences = self._sequences
        self._step_id += 1
        self._num_tokens = 0
        self._rows, self._new_rows, self._released_seq_ids, self._sequences = [], [], [], []
        return plan, sequences

    def _new_row(self, sequence: Sequence) -> NewRow:
        return NewRow(
            seq_id=sequence.seq_id,
            token_ids=sequence.token_ids.copy(),
            num_prompt_tokens=sequence.num_prompt_tokens,
            sampling_params=sequence.sampling_params,
            stop_token_ids=list(sequence.stop_token_ids),
            seed=sequence.seed,
            block_ids=self._kv.block_ids(sequence),
        )
