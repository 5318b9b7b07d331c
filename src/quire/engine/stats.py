"""The engine's counters, gathered for those who show them."""

from __future__ import annotations

from quire.core.stats import EngineStats, StepTokens
from quire.engine.encode_engine import EncodeEngine
from quire.engine.engine import Engine

STATS_INTERVAL_S = 0.1
"""How often it is worth sending them: nobody looks more often, and each costs some 10 us."""


def collect_stats(engine: Engine | EncodeEngine) -> EngineStats:
    """To be called on the engine's thread. Only the waiting sequences are walked, and only after a preemption."""
    scheduler = engine.scheduler
    kv, pool = scheduler.kv, scheduler.kv.pool
    preempted = scheduler.waiting if scheduler.num_preemptions else ()
    tokens = engine.steps.step_tokens
    return EngineStats(
        num_running=len(scheduler.running),
        num_waiting=len(scheduler.waiting),
        num_preempted=sum(sequence.num_preemptions > 0 for sequence in preempted),
        num_blocks=pool.num_blocks,
        num_free_blocks=pool.num_free,
        num_cached_blocks=pool.num_cached,
        num_held_blocks=pool.num_held,
        num_prompt_tokens=scheduler.num_prompt_tokens,
        num_generation_tokens=scheduler.num_generation_tokens,
        num_preemptions=scheduler.num_preemptions,
        num_prefix_query_tokens=kv.num_prefix_query_tokens,
        num_prefix_hit_tokens=kv.num_prefix_hit_tokens,
        step_tokens=StepTokens(tokens.counts.copy(), tokens.total),
    )
