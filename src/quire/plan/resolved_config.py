"""The one frozen configuration that an engine runs with."""

from __future__ import annotations

from dataclasses import dataclass

from quire.config import SchedulerConfig, Task
from quire.core.backend import Backend
from quire.core.kv_layout import KVCacheConfig, KVCacheDType, num_blocks_per_sequence
from quire.core.quantization import Quantization
from quire.plan.backend import ResolvedPackedCache
from quire.plan.dtype import ResolvedDType
from quire.plan.memory import MemoryPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedConfig:
    """What the engine runs with. `reasons` has one line for each value that was chosen and not given, and for what else costs speed or memory."""

    model: str
    task: Task
    dtype: ResolvedDType
    quantization: Quantization
    packed_cache: ResolvedPackedCache
    kv_cache_dtype: KVCacheDType
    preallocate_kv_cache: bool
    enforce_eager: bool
    max_model_len: int
    kv_cache: KVCacheConfig
    scheduler: SchedulerConfig
    backend: Backend
    instruction_set: str | None
    """What the native kernels have to compute with; None where they choose, and for the backends without them."""
    num_threads: int
    seed: int | None
    memory: MemoryPlan
    """What one sequence of the whole context needs beside the KV of the others."""
    reasons: tuple[str, ...]

    @property
    def block_size(self) -> int:
        return self.kv_cache.block_size

    @property
    def num_blocks(self) -> int:
        return self.kv_cache.num_blocks

    @property
    def max_concurrency(self) -> float:
        """How many sequences of max_model_len tokens the KV cache holds; in a step, where nothing is cached."""
        if not self.kv_cache.groups:
            return max(1.0, self.scheduler.max_num_batched_tokens / self.max_model_len)
        per_sequence = num_blocks_per_sequence(self.kv_cache.groups, self.block_size, self.max_model_len)
        return (self.num_blocks - 1) / per_sequence

    @property
    def kv_cache_line(self) -> str:
        """What every start prints."""
        if not self.kv_cache.groups:
            return f"No KV cache: {self.model} computes whole texts of up to {self.max_model_len:,} tokens."
        return (
            f"KV cache: {self.num_blocks:,} blocks × {self.block_size} tokens; maximum concurrency for"
            f" {self.max_model_len:,} tokens per request: {self.max_concurrency:.2f}×"
        )
