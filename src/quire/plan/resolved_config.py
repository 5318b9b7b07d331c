"""The one frozen configuration that an engine runs with."""

from __future__ import annotations

from dataclasses import dataclass

from quire.config import EvictionPolicyName, SchedulerConfig, Task, WorkerConfig
from quire.core.kv_layout import KVCacheConfig, num_blocks_per_sequence
from quire.plan.memory import MemoryPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedConfig:
    """What the engine runs with, part by part.

    `reasons` has one line for each value that was chosen and not given, and for what else costs speed or memory.
    """

    task: Task
    worker: WorkerConfig
    scheduler: SchedulerConfig
    kv_cache: KVCacheConfig
    enable_prefix_caching: bool
    eviction_policy: EvictionPolicyName
    num_steps_in_flight: int
    memory: MemoryPlan
    """What one sequence of the whole context needs beside the KV of the others."""
    reasons: tuple[str, ...]

    @property
    def max_concurrency(self) -> float:
        """How many sequences of max_model_len tokens the KV cache holds; in a step, where nothing is cached."""
        max_model_len = self.scheduler.max_model_len
        if not self.kv_cache.groups:
            return max(1.0, self.scheduler.max_num_batched_tokens / max_model_len)
        per_sequence = num_blocks_per_sequence(self.kv_cache.groups, self.kv_cache.block_size, max_model_len)
        return (self.kv_cache.num_blocks - 1) / per_sequence

    @property
    def kv_cache_line(self) -> str:
        """What every start prints."""
        max_model_len = self.scheduler.max_model_len
        if not self.kv_cache.groups:
            return f"No KV cache: {self.worker.model} computes whole texts of up to {max_model_len:,} tokens."
        return (
            f"KV cache: {self.kv_cache.num_blocks:,} blocks × {self.kv_cache.block_size} tokens; maximum concurrency"
            f" for {max_model_len:,} tokens per request: {self.max_concurrency:.2f}×"
        )
