"""Reading a server's /metrics: rates, shares and percentiles between two readings. quire's and vLLM's names are the same
after the namespace."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from dataclasses import dataclass

import httpx
from prometheus_client.parser import text_string_to_metric_families

from quire.client.address import RemoteError, ServerAddress, fetch, shorten

MARK = "num_requests_running"
"""The metric by which a namespace is known."""
MAX_PAGE_BYTES = 8 << 20


@dataclass(slots=True)
class MetricsReading:
    """One moment. Names are without the namespace; values are sums over all labels, such as several engines.

    `time` is seconds on this process's monotonic clock. `buckets[name]` maps a histogram's upper bounds to how many
    observations are at most so large.
    """

    time: float
    model: str
    values: dict[str, float]
    buckets: dict[str, dict[float, float]]
    num_engines: int


@dataclass(frozen=True, slots=True)
class Change:
    """What happened between two readings. A counter that fell was reset: the server is a new one, and all it shows
    happened since."""

    before: MetricsReading
    after: MetricsReading

    def increase(self, name: str) -> float:
        before, after = self.before.values.get(name, 0.0), self.after.values.get(name, 0.0)
        return after - before if after >= before else after

    def rate(self, name: str) -> float:
        """Per second."""
        return self.increase(name) / max(self.after.time - self.before.time, 1e-9)

    def share(self, part: str, whole: str) -> float | None:
        """The increase of one counter as a share of another's; None if nothing happened."""
        total = self.increase(whole)
        return self.increase(part) / total if total > 0 else None

    def percentile(self, name: str, percent: float) -> float | None:
        """Linear within the bucket, as PromQL's histogram_quantile; the last finite bound for what lies beyond it.

        None if nothing was observed.
        """
        after, before = self.after.buckets.get(name, {}), self.before.buckets.get(name, {})
        if after.get(math.inf, 0.0) < before.get(math.inf, 0.0):
            before = {}
        bounds = sorted(after)
        counts = [after[bound] - before.get(bound, 0.0) for bound in bounds]
        if not counts or counts[-1] <= 0:
            return None
        rank = counts[-1] * percent / 100
        low, below = 0.0, 0.0
        for bound, count in zip(bounds, counts, strict=True):
            if count >= rank and count > below:
                return low if math.isinf(bound) else low + (bound - low) * (rank - below) / (count - below)
            low, below = bound, count
        return low


def read_metrics(http: httpx.Client, address: ServerAddress) -> MetricsReading:
    """Raises RemoteError, which says what to do about it."""
    answer = fetch(http, address, "/metrics")
    if answer.status_code != httpx.codes.OK or len(answer.content) > MAX_PAGE_BYTES:
        raise RemoteError(f"{address.root}/metrics is answered with {answer.status_code} {shorten(answer.text)}")
    return parse_metrics(answer.text, time.monotonic())


def parse_metrics(text: str, now: float) -> MetricsReading:
    """Raises RemoteError if these are not the metrics of an inference server."""
    try:
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        bounds = {label: float(label) for sample in samples if (label := sample.labels.get("le")) is not None}
    except (ValueError, KeyError, IndexError) as error:
        raise RemoteError(f"The metrics cannot be read: {shorten(str(error))}") from error
    marks = [sample for sample in samples if sample.name.endswith(f":{MARK}")]
    if not marks:
        raise RemoteError(f"The server shows no metric `...:{MARK}`: it is neither quire nor vLLM.")
    prefix = marks[0].name.removesuffix(MARK)
    values: dict[str, float] = defaultdict(float)
    buckets: dict[str, dict[float, float]] = defaultdict(lambda: defaultdict(float))
    for sample in samples:
        # What is not finite says nothing, and nothing can be computed with it.
        if not sample.name.startswith(prefix) or not math.isfinite(sample.value):
            continue
        name = sample.name.removeprefix(prefix)
        if "le" in sample.labels and name.endswith("_bucket"):
            buckets[name.removesuffix("_bucket")][bounds[sample.labels["le"]]] += sample.value
        else:
            values[name] += sample.value
    return MetricsReading(now, marks[0].labels.get("model_name", ""), dict(values), dict(buckets), len(marks))
