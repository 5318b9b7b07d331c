"""The engine's own figures as Prometheus metrics, made from its newest EngineStats whenever somebody asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from quire.core.stats import STEP_TOKEN_BOUNDS, EngineStats
from quire.core.wire import EngineStatus

GAUGES = (
    ("num_requests_running", "Sequences that run.", "num_running"),
    ("num_requests_waiting", "Sequences that wait to run, preempted ones included.", "num_waiting"),
    ("num_requests_preempted", "Preempted sequences that wait to run again.", "num_preempted"),
    ("kv_cache_usage_perc", "Share of the KV blocks that sequences hold, 0 to 1.", "kv_cache_usage"),
    ("num_blocks_free", "KV blocks without content.", "num_free_blocks"),
    ("num_blocks_cached", "KV blocks that only the prefix cache keeps.", "num_cached_blocks"),
    ("num_blocks_held", "KV blocks that sequences hold.", "num_held_blocks"),
)
COUNTERS = (
    ("prompt_tokens", "Tokens of the prompts that were started, cached ones included.", "num_prompt_tokens"),
    ("generation_tokens", "Tokens sampled.", "num_generation_tokens"),
    ("num_preemptions", "Sequences sent back to wait because memory ran out.", "num_preemptions"),
    ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", "num_prefix_query_tokens"),
    ("prefix_cache_hits", "Prompt tokens found in the prefix cache.", "num_prefix_hit_tokens"),
    ("external_prefix_cache_queries", "Prompt tokens looked up in external KV stores.", "num_external_query_tokens"),
    ("external_prefix_cache_hits", "Prompt tokens found in external KV stores.", "num_external_hit_tokens"),
    ("spec_decode_num_drafts", "Drafts proposed.", "num_drafts"),
    ("spec_decode_num_draft_tokens", "Draft tokens proposed.", "num_draft_tokens"),
    ("spec_decode_num_accepted_tokens", "Draft tokens accepted.", "num_accepted_tokens"),
)
"""(name, help, attribute of EngineStats)."""


class EngineCollector(Collector):
    """`labels` stand on every sample: model_name and engine."""

    def __init__(self, prefix: str, labels: Mapping[str, str], get_status: Callable[[], EngineStatus | None]) -> None:
        self._prefix = prefix
        self._names = tuple(labels)
        self._values = tuple(labels.values())
        self._get_status = get_status

    @property
    def stats(self) -> EngineStats:
        """The newest; zeros before the engine was heard from."""
        status = self._get_status()
        return EngineStats() if status is None or status.stats is None else status.stats

    def _cache_config(self) -> dict[str, str]:
        """What is fixed about the KV cache; known once the engine is ready."""
        status = self._get_status()
        if status is None or status.info is None:
            return {}
        return {"block_size": str(status.info.block_size), "num_gpu_blocks": str(status.info.num_blocks)}

    def collect(self) -> Iterator[Metric]:
        stats = self.stats
        for family, figures in ((GaugeMetricFamily, GAUGES), (CounterMetricFamily, COUNTERS)):
            for name, text, attribute in figures:
                metric = family(self._prefix + name, text, labels=self._names)
                metric.add_metric(self._values, getattr(stats, attribute))
                yield metric
        yield self._accepted_per_position(stats)
        yield self._step_tokens(stats)
        yield self._info("cache_config_info", "The KV cache's configuration.", self._cache_config(), 1)
        # Without adapters: the names that routers look for, with nothing in them.
        lora = {"max_lora": "0", "running_lora_adapters": "", "waiting_lora_adapters": ""}
        yield self._info("lora_requests_info", "LoRA adapters in use.", lora, 0)

    def _accepted_per_position(self, stats: EngineStats) -> Metric:
        name = "spec_decode_num_accepted_tokens_per_pos"
        text = "Draft tokens accepted at each position of a draft."
        counter = CounterMetricFamily(self._prefix + name, text, labels=(*self._names, "position"))
        for position, value in enumerate(stats.num_accepted_tokens_per_position):
            counter.add_metric((*self._values, str(position)), value)
        return counter

    def _step_tokens(self, stats: EngineStats) -> Metric:
        steps = HistogramMetricFamily(
            self._prefix + "iteration_tokens_total", "Tokens computed in a step.", labels=self._names
        )
        buckets, count = [], 0
        for bound, num_steps in zip((*STEP_TOKEN_BOUNDS, float("inf")), stats.step_tokens.counts, strict=True):
            count += num_steps
            buckets.append((str(float(bound)) if bound != float("inf") else "+Inf", count))
        steps.add_metric(self._values, buckets, stats.step_tokens.total)
        return steps

    def _info(self, name: str, text: str, fixed: Mapping[str, str], value: float) -> Metric:
        info = GaugeMetricFamily(self._prefix + name, text, labels=(*self._names, *fixed))
        if fixed:
            info.add_metric((*self._values, *fixed.values()), value)
        return info
