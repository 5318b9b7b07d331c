"""Which texts an encoder computes together: whole ones, in the policy's order, up to a budget of tokens."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable

from quire.cache.kv_cache_manager import KVCacheManager
from quire.config import SchedulerConfig
from quire.core.embedding import EncodePlan, EncodeResult, EncodeRow, PoolingParams, Vectors
from quire.core.sequence import FinishReason, Sequence, SequenceStatus
from quire.scheduler.policies import POLICIES, SequenceQueue


class EncodeScheduler:
    """Owns the texts' status. Call `plan`, run the step, `commit`; several steps may be in flight.

    A text is a Sequence that computes its prompt in one step and has no output. `kv` has no blocks: it is there for
    those who look at a scheduler.
    """

    num_preemptions = 0
    num_generation_tokens = 0
    kept: Iterable[Sequence] = ()

    def __init__(self, config: SchedulerConfig, kv: KVCacheManager) -> None:
        self.config = config
        self.kv = kv
        self.num_prompt_tokens = 0
        """Of the texts that were started."""
        self._policy = POLICIES[config.policy]()
        self._waiting = SequenceQueue(self._policy)
        self._running = SequenceQueue(self._policy)
        self._params: dict[int, PoolingParams] = {}
        self._in_flight: deque[tuple[EncodePlan, list[Sequence]]] = deque()
        self._next_step_id = 0

    @property
    def waiting(self) -> list[Sequence]:
        """In the order in which they will run; to be read only."""
        return self._waiting.sequences

    @property
    def running(self) -> list[Sequence]:
        """In a step in flight; to be read only."""
        return self._running.sequences

    def add(self, sequence: Sequence, params: PoolingParams) -> None:
        self._policy.arrived(sequence, 0)
        self._waiting.add(sequence)
        self._params[sequence.seq_id] = params

    def abort(self, sequence: Sequence) -> None:
        """Drop a text wherever it is; what a step in flight still returns for it is ignored. Idempotent."""
        if not sequence.finished:
            self._finish(sequence, FinishReason.ABORT)

    def plan(self) -> EncodePlan | None:
        """The next texts in order, as many as fit; the first even where it alone exceeds the budget."""
        budget = self.config.max_num_batched_tokens
        sequences: list[Sequence] = []
        for sequence in self.waiting[: self.config.max_num_seqs]:
            if sequences and sequence.num_known > budget:
                break
            budget -= sequence.num_known
            sequences.append(sequence)
        if not sequences:
            return None
        for sequence in sequences:
            self._start(sequence)
        rows = [EncodeRow(sequence.token_ids, self._params[sequence.seq_id]) for sequence in sequences]
        plan = EncodePlan(self._next_step_id, rows)
        self._next_step_id += 1
        self._in_flight.append((plan, sequences))
        return plan

    def commit(self, plan: EncodePlan, result: EncodeResult) -> list[tuple[Sequence, Vectors | str]]:
        """Take in the result of the oldest step in flight: each text's vectors, or what went wrong."""
        planned, sequences = self._in_flight.popleft()
        assert planned.step_id == plan.step_id == result.step_id, "steps are committed in the order they were planned"
        texts = []
        for sequence, row in zip(sequences, result.rows, strict=True):
            if not sequence.finished:
                sequence.num_computed = sequence.num_known
                self._finish(sequence, FinishReason.STOP if isinstance(row, Vectors) else FinishReason.ERROR)
                texts.append((sequence, row))
        return texts

    def _start(self, sequence: Sequence) -> None:
        self._waiting.remove(sequence)
        self._running.add(sequence)
        self._policy.started(sequence)
        sequence.status = SequenceStatus.RUNNING
        sequence.first_scheduled_time = time.monotonic()
        sequence.num_planned = sequence.num_known
        self.num_prompt_tokens += sequence.num_known

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        queue = self._running if sequence.status is SequenceStatus.RUNNING else self._waiting
        queue.remove(sequence)
        self._policy.finished(sequence)
        del self._params[sequence.seq_id]
        sequence.status = SequenceStatus.FINISHED
        sequence.finish_reason = reason
