"""A scheduler, its KV cache and a simulated worker, driven step by step."""

from __future__ import annotations

from collections import deque
from typing import Any

from tests.scheduler.simulated_worker import SimulatedWorker

from quire.cache.kv_cache_manager import KVCacheManager
from quire.config import SchedulerConfig
from quire.core.kv_layout import KVCacheConfig, KVGroup, KVSpec
from quire.core.sampling_params import SamplingParams
from quire.core.sequence import Sequence
from quire.core.step import StepPlan
from quire.scheduler.scheduler import RowUpdate, Scheduler

FULL = KVSpec(1, 8)
VOCAB_SIZE = 1000


def sliding(window: int) -> KVSpec:
    return KVSpec(1, 8, window)


def kv_config(num_blocks: int = 65, block_size: int = 4, specs: tuple[KVSpec, ...] = (FULL,)) -> KVCacheConfig:
    groups = tuple(KVGroup(spec, (layer,)) for layer, spec in enumerate(specs))
    return KVCacheConfig(block_size, num_blocks, groups, slots_per_block=1, bytes_per_block=1)


def make_sequence(seq_id: int, prompt: list[int] | int, num_output: int = 4, **fields: Any) -> Sequence:
    """`prompt`: the tokens, or how many distinct ones. Sampling parameters go by their own names."""
    if isinstance(prompt, int):
        prompt = [10_000 * (seq_id + 1) + i for i in range(prompt)]
    own = ("priority", "tenant", "stop_token_ids", "cache_salt", "keep_blocks", "arrival_time", "seed")
    return Sequence(
        seq_id=seq_id,
        request_id=f"request-{seq_id}",
        token_ids=list(prompt),
        num_prompt_tokens=len(prompt),
        sampling_params=SamplingParams(**{name: value for name, value in fields.items() if name not in own}),
        max_num_tokens=len(prompt) + num_output,
        **{name: value for name, value in fields.items() if name in own},
    )


class Harness:
    """The KV layout, and `SchedulerConfig` fields as keyword arguments."""

    def __init__(
        self, config: KVCacheConfig | None = None, *, eviction: Any = "lru", num_steps_in_flight: int = 1, **fields: Any
    ) -> None:
        config = config or kv_config()
        self.kv = KVCacheManager(config, model_identity="model", eviction_policy=eviction)
        self.config = SchedulerConfig(**{"max_num_batched_tokens": 64, "max_num_seqs": 8, **fields})
        self.scheduler = Scheduler(self.config, self.kv)
        self.worker = SimulatedWorker(config, VOCAB_SIZE)
        self.num_steps_in_flight = num_steps_in_flight
        self.in_flight: deque[StepPlan] = deque()

    def add(self, *sequences: Sequence) -> None:
        for sequence in sequences:
            self.scheduler.add(sequence)

    def plan(self) -> StepPlan | None:
        plan = self.scheduler.plan()
        if plan is not None:
            self.worker.submit(plan)
            self.in_flight.append(plan)
        return plan

    def commit(self) -> list[RowUpdate]:
        return self.scheduler.commit(self.in_flight.popleft(), self.worker.collect())

    def step(self) -> tuple[StepPlan, list[RowUpdate]]:
        """Fill the queue of steps in flight and commit the oldest; returns it and its updates."""
        while len(self.in_flight) < self.num_steps_in_flight and self.plan() is not None:
            pass
        return self.in_flight[0], self.commit()

    def run(self, max_num_steps: int = 5000) -> list[StepPlan]:
        """Step until nothing is left."""
        plans = []
        while self.scheduler.has_unfinished or self.in_flight:
            plans.append(self.step()[0])
            assert len(plans) < max_num_steps, "no end in sight"
        assert self.kv.pool.num_free + self.kv.pool.num_cached + self.kv.pool.num_held == self.kv.pool.num_blocks
        return plans


def rows(plan: StepPlan | None) -> dict[int, tuple[int, int, bool]]:
    """seq_id -> (start, end, samples)."""
    assert plan is not None
    return {row.seq_id: (row.start, row.start + row.num_tokens, row.samples) for row in plan.rows}
