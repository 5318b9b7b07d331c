"""An executor without a model: answers every plan at once, so that what remains to be measured is control."""

from __future__ import annotations

from collections import deque

import numpy as np

from quire.checkpoint.checkpoint import Checkpoint
from quire.config import WorkerConfig
from quire.core.embedding import EncodePlan, EncodeResult, EncodeRow, Vectors
from quire.core.kv_layout import KVCacheConfig
from quire.core.step import RowResult, StepPlan, StepResult

FIRST_TOKEN_ID = 1000
NUM_TOKEN_IDS = 4093
"""Sampled ids lie in [1000, 5093): ordinary words in any vocabulary, far from the special tokens."""


def null_token(seed: int, position: int) -> int:
    """The token at a position of a sequence: a function of the two alone, as with a real sampler at a fixed seed."""
    return FIRST_TOKEN_ID + (seed * 7919 + position * 104729) % NUM_TOKEN_IDS


class NullExecutor:
    """Keeps rows by sequence as a worker does; logprobs are not computed."""

    def __init__(self, config: WorkerConfig, checkpoint: Checkpoint | None = None) -> None:
        self._seeds: dict[int, int] = {}
        self._results: deque[StepResult] = deque()

    def allocate_kv_cache(self, config: KVCacheConfig) -> None:
        """Nothing is kept."""

    def prepare_grammar(self, grammar: str, timeout_s: float) -> bool:
        return True

    def submit(self, plan: StepPlan) -> None:
        for seq_id in plan.released_seq_ids:
            del self._seeds[seq_id]
        for new in plan.new_rows:
            self._seeds[new.seq_id] = new.seed
        seeds = self._seeds
        rows = [
            RowResult(row.seq_id, [null_token(seeds[row.seq_id], row.start + row.num_tokens)] if row.samples else [])
            for row in plan.rows
        ]
        self._results.append(StepResult(plan.step_id, rows))

    def collect(self) -> StepResult:
        return self._results.popleft()

    def shutdown(self) -> None:
        self._results.clear()
        self._seeds.clear()


NULL_VECTOR_SIZE = 16


class NullEncodeExecutor:
    """Vectors of length 1 that count a text's token ids: equal texts have equal vectors."""

    def __init__(self, config: WorkerConfig, checkpoint: Checkpoint | None = None) -> None:
        self._results: deque[EncodeResult] = deque()

    def submit(self, plan: EncodePlan) -> None:
        self._results.append(EncodeResult(plan.step_id, [_null_vectors(row) for row in plan.rows]))

    def collect(self) -> EncodeResult:
        return self._results.popleft()

    def shutdown(self) -> None:
        self._results.clear()


def _null_vectors(row: EncodeRow) -> Vectors:
    ids = np.array(row.token_ids) % NULL_VECTOR_SIZE
    rows = np.eye(NULL_VECTOR_SIZE)[ids]
    counts = rows.sum(0, keepdims=True) if row.params.task == "embed" else rows
    counts = counts[:, : row.params.dimensions]
    lengths = np.maximum(np.linalg.norm(counts, axis=1, keepdims=True), 1.0)
    return Vectors((counts / lengths).astype("<f4").tobytes(), len(counts))
