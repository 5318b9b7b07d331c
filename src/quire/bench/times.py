"""Times of requests and the figures made of them, under the keys that serving benchmarks share (vLLM's names)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from quire.bench.statistics import summarize_ms


@dataclass(slots=True)
class RequestTimes:
    """One request. Seconds: `ttft` to the first token, `e2el` to the last, `itl` between outputs of a stream."""

    num_input_tokens: int
    num_output_tokens: int
    ttft: float
    e2el: float
    itl: list[float] = field(default_factory=list)
    failed: bool = False

    @property
    def tpot(self) -> float | None:
        """Seconds an output token after the first; None if there is only one."""
        if self.num_output_tokens < 2:
            return None
        return (self.e2el - self.ttft) / (self.num_output_tokens - 1)


METRICS: dict[str, Callable[[RequestTimes], Sequence[float]]] = {
    "ttft": lambda times: (times.ttft,),
    "tpot": lambda times: () if times.tpot is None else (times.tpot,),
    "itl": lambda times: times.itl,
    "e2el": lambda times: (times.e2el,),
}
"""Name -> the seconds that one request adds to it."""


@dataclass(slots=True)
class Measurement:
    """One timed run of a workload. `duration` is seconds. Failed requests count only as failed."""

    duration: float
    requests: Sequence[RequestTimes]

    @property
    def completed(self) -> list[RequestTimes]:
        return [request for request in self.requests if not request.failed]

    @property
    def num_output_tokens(self) -> int:
        return sum(request.num_output_tokens for request in self.completed)

    @property
    def output_throughput(self) -> float:
        return self.num_output_tokens / self.duration

    def seconds(self, metric: str) -> list[float]:
        """All values of a metric over the completed requests."""
        return [value for request in self.completed for value in METRICS[metric](request)]

    def to_dict(
        self, metrics: Sequence[str] = tuple(METRICS), percentiles: Sequence[float] = (90, 99)
    ) -> dict[str, Any]:
        """Counts, rates a second, and the summaries in ms of the named metrics that have values."""
        completed = self.completed
        num_input_tokens = sum(request.num_input_tokens for request in completed)
        num_output_tokens = self.num_output_tokens
        result = {
            "duration": self.duration,
            "completed": len(completed),
            "failed": len(self.requests) - len(completed),
            "total_input_tokens": num_input_tokens,
            "total_output_tokens": num_output_tokens,
            "request_throughput": len(completed) / self.duration,
            "output_throughput": num_output_tokens / self.duration,
            "total_token_throughput": (num_input_tokens + num_output_tokens) / self.duration,
        }
        for metric in metrics:
            result |= summarize_ms(metric, self.seconds(metric), percentiles)
        return result
