"""Shows the engine to whoever watches: steps, blocks and sequences, a few times a second, for under 1 % of its time.

With nobody watching a step costs one append to a bounded deque. While somebody watches, `take` measures its CPU time
and waits until that is less than `MAX_SHARE` of the time that passed, however large the engine is; and it is called
when a step was submitted: where compute has a thread of its own, no step waits for it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import NamedTuple

import numpy as np

from quire.cache.kv_cache_manager import BlockTables
from quire.core.embedding import EncodePlan
from quire.core.sequence import Sequence
from quire.core.step import StepPlan
from quire.core.view import (
    MAX_STEPS_KEPT,
    EngineLayout,
    KVGroupView,
    Lane,
    LaneStatus,
    StepRecord,
    TableChange,
    ViewUpdate,
)
from quire.scheduler.encode_scheduler import EncodeScheduler
from quire.scheduler.scheduler import Scheduler

MIN_INTERVAL_S = 0.15
MAX_SHARE = 0.005
"""Of the engine thread's time; encoding and sending an update costs about a third of that again."""
MAX_WAITING_LANES = 100


class SentTables(NamedTuple):
    """What was last sent of one sequence's tables.

    Between admission and release a table only grows, gets a copy in place of its last block (copy on write), or
    loses its first ones to the window; so this is enough to see a change, and nothing is compared entry by entry.
    """

    blocks: BlockTables
    length: int
    last: list[list[int]]
    first_kept: list[int]


class EngineView:
    """Read-only eyes on a scheduler. The engine thread calls everything."""

    def __init__(self, scheduler: Scheduler | EncodeScheduler) -> None:
        self.while_computing: Callable[[], None] = lambda: None
        """The engine calls it in each step between submitting and collecting: the time to call `take`."""
        self._scheduler = scheduler
        self._steps: deque[StepRecord] = deque(maxlen=MAX_STEPS_KEPT)
        self._num_steps = 0
        self.watchers: set[int] = set()
        """The API processes in which somebody looks; to be read only."""
        self._starts_over = True
        self._next_time = 0.0
        self._last_mark: tuple[int, ...] = ()
        self._num_steps_sent = 0
        self._sent_states = np.empty(0, np.uint8)
        self._sent_tables: dict[int, SentTables] = {}

    def set_watching(self, watcher: int, enabled: bool) -> None:
        """A watcher comes or goes. For a new one the next update starts over, with the layout."""
        if not enabled:
            self.watchers.discard(watcher)
            return
        self.watchers.add(watcher)
        self._starts_over = True
        self._last_mark = ()

    def note_step(self, plan: StepPlan, start_time: float, end_time: float) -> None:
        """A step was committed; times in monotonic seconds. Plain decode steps, by far the most, need no loop."""
        num_rows = num_decode = num_sampled = plan.num_rows
        if plan.num_tokens != num_rows or plan.new_rows:
            new = {row.seq_id for row in plan.new_rows}
            num_sampled = sum(row.samples for row in plan.rows)
            num_decode = sum(row.samples and row.num_tokens == 1 and row.seq_id not in new for row in plan.rows)
        num_prefill = plan.num_tokens - num_decode
        duration = end_time - start_time
        self._steps.append(StepRecord(plan.step_id, end_time, duration, num_prefill, num_decode, num_sampled, num_rows))
        self._num_steps += 1

    def note_texts(self, plan: EncodePlan, start_time: float, end_time: float) -> None:
        """As `note_step`, for a step of an encoder: whole texts, nothing sampled."""
        self._steps.append(
            StepRecord(plan.step_id, end_time, end_time - start_time, plan.num_tokens, 0, 0, plan.num_rows)
        )
        self._num_steps += 1

    def take(self, now: float) -> ViewUpdate | None:
        """What changed since the last update; None if nobody watches, nothing changed, or it is too early.

        To be called in each step, and about every 0.2 s while the engine idles. `now` in monotonic seconds.
        """
        if not self.watchers or now < self._next_time:
            return None
        mark = self._mark()
        if mark == self._last_mark:
            return None
        started = time.thread_time()
        update = self._update(now)
        self._last_mark = mark
        self._next_time = now + max(MIN_INTERVAL_S, (time.thread_time() - started) / MAX_SHARE)
        return update

    def _mark(self) -> tuple[int, ...]:
        """Equal marks: nothing worth showing happened between them."""
        scheduler, pool = self._scheduler, self._scheduler.kv.pool
        return self._num_steps, len(scheduler.waiting), len(scheduler.running), pool.num_free, pool.num_cached

    def _update(self, now: float) -> ViewUpdate:
        layout = None
        if self._starts_over:
            layout = self._layout()
            self._starts_over = False
            self._num_steps_sent = self._num_steps - len(self._steps)
            self._sent_tables = {}
            self._sent_states = np.empty(0, np.uint8)
        scheduler = self._scheduler
        changed, states = self._take_states()
        return ViewUpdate(
            time=now,
            layout=layout,
            steps=self._take_steps(),
            lanes=self._take_lanes(),
            changed_blocks=changed,
            block_states=states,
            num_waiting=len(scheduler.waiting),
            num_running=len(scheduler.running),
            num_preemptions=scheduler.num_preemptions,
            num_prefix_query_tokens=scheduler.kv.num_prefix_query_tokens,
            num_prefix_hit_tokens=scheduler.kv.num_prefix_hit_tokens,
        )

    def _layout(self) -> EngineLayout:
        config, kv = self._scheduler.config, self._scheduler.kv
        return EngineLayout(
            num_blocks=kv.pool.num_blocks,
            block_size=kv.config.block_size,
            bytes_per_block=kv.config.bytes_per_block,
            kv_groups=[KVGroupView(len(group.layers), group.spec.window) for group in kv.config.groups],
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_num_seqs=config.max_num_seqs,
            max_model_len=config.max_model_len,
        )

    def _take_steps(self) -> list[StepRecord]:
        num_new = min(self._num_steps - self._num_steps_sent, len(self._steps))
        self._num_steps_sent = self._num_steps
        return list(islice(self._steps, len(self._steps) - num_new, None))

    def _take_states(self) -> tuple[list[int], bytes]:
        """(block ids, their states) of the blocks that changed; ([], all states) when starting over."""
        states = np.frombuffer(self._scheduler.kv.pool.states(), np.uint8)
        before, self._sent_states = self._sent_states, states
        if len(before) != len(states):
            return [], states.tobytes()
        changed = np.flatnonzero(states != before)
        return (changed + 1).tolist(), states[changed].tobytes()

    def _take_lanes(self) -> list[Lane]:
        scheduler = self._scheduler
        before, self._sent_tables = self._sent_tables, {}
        lanes = self._lanes(scheduler.running, "running", before)
        lanes += self._lanes(scheduler.kept, "kept", before)
        return lanes + self._lanes(scheduler.waiting[:MAX_WAITING_LANES], "waiting", before)

    def _lanes(self, sequences: Iterable[Sequence], status: LaneStatus, before: dict[int, SentTables]) -> list[Lane]:
        lanes = []
        for sequence in sequences:
            preempted = status == "waiting" and sequence.num_preemptions > 0
            lanes.append(
                Lane(
                    sequence.seq_id,
                    sequence.request_id,
                    sequence.index,
                    "preempted" if preempted else status,
                    sequence.num_prompt_tokens,
                    sequence.num_known,
                    sequence.num_computed,
                    sequence.num_cached_tokens,
                    sequence.num_preemptions,
                    sequence.max_num_tokens,
                    sequence.arrival_time,
                    sequence.first_scheduled_time,
                    self._take_tables(sequence, before.get(sequence.seq_id)),
                )
            )
        return lanes

    def _take_tables(self, sequence: Sequence, before: SentTables | None) -> list[TableChange] | None:
        blocks = self._scheduler.kv.tables(sequence)
        if blocks is None:
            return None if before is None else []
        sent = SentTables(
            blocks, len(blocks.tables[0]), [table[-1:] for table in blocks.tables], blocks.first_kept.copy()
        )
        self._sent_tables[sequence.seq_id] = sent
        start = 0
        if before is not None and before.blocks is blocks:
            if sent == before:
                return None
            start = max(0, before.length - 1)
        return [
            TableChange(start, first_kept, table[start:])
            for table, first_kept in zip(blocks.tables, sent.first_kept, strict=True)
        ]
