"""Random histories of the scheduler and the KV cache manager, against a worker that models the cache's content."""

from __future__ import annotations

from collections import Counter, deque
from itertools import chain

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.scheduler.simulated_worker import SimulatedWorker, expected_output

from quire.cache.eviction import EVICTION_POLICIES
from quire.cache.kv_cache_manager import KVCacheManager
from quire.config import SchedulerConfig
from quire.core.kv_layout import NULL_BLOCK, KVCacheConfig, KVGroup, KVSpec, num_blocks_per_sequence
from quire.core.sampling_params import SamplingParams
from quire.core.sequence import FinishReason, Sequence, SequenceStatus
from quire.core.step import StepPlan
from quire.errors import InvalidRequestError
from quire.scheduler.fair_policy import FairPolicy
from quire.scheduler.guarantees import MAX_PREEMPTIONS
from quire.scheduler.policies import POLICIES
from quire.scheduler.scheduler import RowUpdate, Scheduler

FULL = KVSpec(1, 8)
LAYOUTS: dict[str, list[KVSpec]] = {
    "full": [FULL],
    "sliding": [KVSpec(1, 8, 5)],
    "mixed": [FULL, KVSpec(1, 8, 3), KVSpec(1, 8, 8)],
}
VOCAB_SIZE = 5
PROMPTS = [[0, 1, 2, 3, 4] * 6, [0, 1, 2, 3, 4, 0, 1, 2] + [3] * 22, [4, 4] * 15]


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        layout=st.sampled_from(sorted(LAYOUTS)),
        block_size=st.sampled_from([1, 2, 4]),
        pool_size=st.sampled_from([1.0, 1.0, 1.3, 1.7, 3.0]),
        depth=st.integers(1, 3),
        budget=st.sampled_from([3, 8, 64, 1]),
        max_num_seqs=st.sampled_from([6, 4, 2, 1]),
        policy=st.sampled_from(list(POLICIES)),
        eviction=st.sampled_from(list(EVICTION_POLICIES)),
        chunked=st.booleans(),
        caching=st.sampled_from([True, True, True, False]),
        failures=st.sampled_from([False, False, False, True]),
    )
    def start(
        self, layout, block_size, pool_size, depth, budget, max_num_seqs, policy, eviction, chunked, caching, failures
    ):
        groups = tuple(KVGroup(spec, (layer,)) for layer, spec in enumerate(LAYOUTS[layout]))
        # From just enough for one sequence of 40 tokens to plenty.
        num_blocks = 1 + int(pool_size * num_blocks_per_sequence(groups, block_size, 40, 1))
        config = KVCacheConfig(block_size, num_blocks, groups, slots_per_block=1, bytes_per_block=1)
        self.kv = KVCacheManager(config, model_identity="m", enable_prefix_caching=caching, eviction_policy=eviction)
        self.scheduler = Scheduler(
            SchedulerConfig(
                max_num_batched_tokens=budget,
                max_num_seqs=max_num_seqs,
                max_model_len=64,
                policy=policy,
                enable_chunked_prefill=chunked,
            ),
            self.kv,
        )
        self.max_num_seqs, self.depth, self.budget, self.chunked = max_num_seqs, depth, budget, chunked
        self.failures = failures
        self.worker = SimulatedWorker(config, VOCAB_SIZE)
        self.in_flight: deque[StepPlan] = deque()
        self.live: list[Sequence] = []
        self.kept: list[Sequence] = []
        self.num_sequences = 0

    def make(self, token_ids: list[int], num_output: int, keep_blocks: bool, priority: int) -> Sequence:
        self.num_sequences += 1
        return Sequence(
            seq_id=self.num_sequences,
            request_id=str(self.num_sequences),
            token_ids=token_ids,
            num_prompt_tokens=len(token_ids),
            sampling_params=SamplingParams(),
            max_num_tokens=len(token_ids) + num_output,
            seed=self.num_sequences % 2,
            keep_blocks=keep_blocks,
            arrival_time=float(self.num_sequences),
            priority=priority,
            tenant=str(priority),
        )

    @rule(
        count=st.integers(1, 3),
        prompt=st.sampled_from(PROMPTS),
        length=st.integers(1, 30),
        num_output=st.integers(1, 25),
        stop=st.sampled_from([False, False, True]),
        keep_blocks=st.booleans(),
        priority=st.integers(0, 2),
    )
    def add(self, count, prompt, length, num_output, stop, keep_blocks, priority):
        for _ in range(count):
            sequence = self.make(prompt[:length], num_output, keep_blocks, priority)
            sequence.stop_token_ids = frozenset({4}) if stop else frozenset()
            try:
                self.scheduler.add(sequence)
            except InvalidRequestError:
                return
            self.live.append(sequence)

    @precondition(lambda self: any(s.num_planned for s in self.live + self.kept))
    @rule(
        which=st.integers(0, 99),
        back=st.sampled_from([0, 0, 1, 2, 5, 11]),
        extra=st.lists(st.integers(0, 4), min_size=1, max_size=3),
        count=st.integers(1, 3),
        keep_blocks=st.booleans(),
        parent_leaves=st.booleans(),
    )
    def fork(self, which, back, extra, count, keep_blocks, parent_leaves):
        parents = [s for s in self.live + self.kept if s.num_planned]
        parent = parents[which % len(parents)]
        num_tokens = max(1, min(parent.num_planned, parent.num_known) - back)
        for sibling in range(count):
            tokens = parent.token_ids[:num_tokens] + [(token + sibling) % 5 for token in extra]
            child = self.make(tokens, 8, keep_blocks, parent.priority)
            try:
                self.scheduler.fork(parent, child, num_tokens)
            except InvalidRequestError:
                return
            self.live.append(child)
        if parent_leaves:
            self.scheduler.abort(parent)
            self.scheduler.release(parent)
            self.collect_finished()
            self.kept = [s for s in self.kept if s is not parent]

    @precondition(lambda self: len(self.in_flight) < self.depth)
    @rule()
    def plan(self):
        plan = self.scheduler.plan()
        if plan is None:
            return
        if self.chunked:
            assert plan.num_tokens <= self.budget
        self.check_writes(plan)
        self.worker.submit(plan)
        self.in_flight.append(plan)
        running = {s.seq_id for s in self.live if s.status is SequenceStatus.RUNNING}
        assert set(self.worker.rows) <= running, "a row outlives its sequence"

    @precondition(lambda self: self.in_flight)
    @rule()
    def commit(self):
        plan = self.in_flight.popleft()
        for update in self.scheduler.commit(plan, self.worker.collect()):
            self.check_update(update)
        self.collect_finished()

    @precondition(lambda self: self.scheduler.has_unfinished)
    @rule(num_steps=st.integers(1, 12))
    def run(self, num_steps):
        for _ in range(num_steps):
            self.fill_queue()
            if self.in_flight:
                self.commit()

    @precondition(lambda self: self.live)
    @rule(which=st.integers(0, 99), stop_string=st.booleans())
    def end(self, which, stop_string):
        sequence = self.live[which % len(self.live)]
        if stop_string:
            self.scheduler.finish(sequence, FinishReason.STOP, "stop")
        else:
            self.scheduler.abort(sequence)
        self.collect_finished()

    @precondition(lambda self: self.kept)
    @rule(which=st.integers(0, 99))
    def release(self, which):
        self.scheduler.release(self.kept.pop(which % len(self.kept)))

    @precondition(lambda self: self.live and self.failures)
    @rule(which=st.integers(0, 99))
    def fail(self, which):
        self.worker.failing.add(self.live[which % len(self.live)].seq_id)

    @precondition(lambda self: self.num_sequences % 8 == 7)
    @rule()
    def reset(self):
        done = self.kv.reset_prefix_cache()
        assert done == (self.kv.pool.num_held == 0)
        assert not done or self.kv.pool.num_cached == 0

    def fill_queue(self) -> None:
        while len(self.in_flight) < self.depth:
            before = len(self.in_flight)
            self.plan()
            if len(self.in_flight) == before:
                return

    def collect_finished(self) -> None:
        self.kept += [s for s in self.live if s.finished and s.keep_blocks]
        self.live = [s for s in self.live if not s.finished]

    def check_update(self, update: RowUpdate) -> None:
        sequence = update.sequence
        if sequence.finish_reason is FinishReason.LENGTH:
            assert sequence.num_known == sequence.max_num_tokens
        if sequence.finish_reason is FinishReason.STOP:
            assert sequence.token_ids[-1] == 4
        prompt = sequence.token_ids[: sequence.num_prompt_tokens]
        assert sequence.token_ids == expected_output(prompt, sequence.num_known, sequence.seed, VOCAB_SIZE)

    def check_writes(self, plan: StepPlan) -> None:
        """Nobody else holds a block that is written, unless it reads in this same step what is being written.

        Or it was forked and finished before it ran: then it shares the block only as far as its tokens go.
        """
        sequences = {s.seq_id: s for s in self.live + self.kept}
        starts = {row.seq_id: row.start for row in plan.rows}
        block_size = self.kv.config.block_size
        holders: dict[int, set[int]] = {}
        for seq_id, tables in self.tables().items():
            for block in chain.from_iterable(tables):
                holders.setdefault(block, set()).add(seq_id)
        for row in plan.rows:
            end = row.start + row.num_tokens
            for table in self.kv.block_ids(sequences[row.seq_id]):
                assert len(table) * block_size >= end
                for block in table[row.start // block_size : (end - 1) // block_size + 1]:
                    for sharer in holders[block] - {row.seq_id}:
                        if sequences[sharer].finished:
                            assert sequences[sharer].num_planned <= row.start
                        else:
                            assert starts[sharer] > row.start

    def tables(self) -> dict[int, list[list[int]]]:
        held = [s for s in self.live + self.kept if self.kv.tables(s) is not None]
        return {s.seq_id: self.kv.block_ids(s) for s in held}

    @invariant()
    def every_block_is_in_one_place(self):
        if not hasattr(self, "kv"):
            return
        pool = self.kv.pool
        tables = self.tables()
        held = Counter(block for group in tables.values() for table in group for block in table if block != NULL_BLOCK)
        counts = {block: count for block, count in enumerate(pool.reference_counts) if count}
        assert counts == held
        assert pool.num_free + pool.num_cached + len(held) == pool.num_blocks == self.kv.config.num_blocks - 1
        for group in range(len(self.kv.config.groups)):
            others = {b for t in tables.values() for g, table in enumerate(t) if g != group for b in table}
            own = {b for t in tables.values() for b in t[group]}
            assert own & others <= {NULL_BLOCK}, "a block in two groups"

    @invariant()
    def counters_agree(self):
        if not hasattr(self, "kv"):
            return
        running = [s for s in self.live if s.status is SequenceStatus.RUNNING]
        assert len(running) == len(self.scheduler.running) <= self.max_num_seqs
        assert len(self.live) - len(running) == len(self.scheduler.waiting)
        for s in self.live:
            assert 0 <= s.num_computed <= s.num_planned <= s.num_known + s.num_samples_in_flight
            assert s.num_known + s.num_samples_in_flight <= s.max_num_tokens
            assert s.num_samples_in_flight <= s.num_steps_in_flight <= len(self.in_flight)
            assert s.num_preemptions <= MAX_PREEMPTIONS
            assert (self.kv.tables(s) is not None) == (s.status is SequenceStatus.RUNNING)

    def teardown(self):
        """Whatever happened, everything finishes, and every block comes back."""
        if not hasattr(self, "kv"):
            return
        most = sum((MAX_PREEMPTIONS + 1) * s.max_num_tokens + self.depth for s in self.live)
        for _ in range(most + len(self.in_flight)):
            if not (self.scheduler.has_unfinished or self.in_flight):
                break
            self.fill_queue()
            self.commit()
            self.every_block_is_in_one_place()
        assert not self.scheduler.has_unfinished, "more steps than it takes to compute all one token at a time"
        for sequence in self.kept:
            self.scheduler.release(sequence)
        assert self.kv.pool.num_held == 0
        policy = self.scheduler._policy
        assert not isinstance(policy, FairPolicy) or policy.num_tenants == 0, "a tenant without sequences is remembered"
        assert not any(self.kv.pool.reference_counts)
        assert not self.kv._hash_chains, "a sequence that is gone is remembered"
        assert self.kv.reset_prefix_cache()
        assert self.kv.pool.num_free == self.kv.pool.num_blocks


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(
    max_examples=60, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)


class LongSchedulerMachine(SchedulerMachine):
    """2,000 histories: about 170,000 rules, and several steps of the scheduler for each."""


TestLongSchedulerMachine = pytest.mark.nightly(LongSchedulerMachine.TestCase)
TestLongSchedulerMachine.settings = settings(
    max_examples=2000, stateful_step_count=100, deadline=None, suppress_health_check=list(HealthCheck)
)
