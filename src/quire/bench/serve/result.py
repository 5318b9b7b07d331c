"""What a run of load amounts to: the keys of vLLM's `bench serve`, and goodput."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from quire.bench.serve.comparison import Comparison
from quire.bench.serve.traffic import Traffic
from quire.bench.times import METRICS, Measurement, RequestTimes
from quire.client.load_client import StreamedAnswer
from quire.errors import InvalidRequestError

SLO_METRICS = ("ttft", "tpot", "e2el")


@dataclass(slots=True)
class ServedRequest(RequestTimes):
    """`start` and `arrivals` are seconds from the run's start; `arrivals` has the events that carried output."""

    start: float = 0.0
    arrivals: list[float] = field(default_factory=list)
    error: str | None = None


def served_request(answer: StreamedAnswer, num_input_tokens: int, run_start: float) -> ServedRequest:
    """Times of an answer. Token counts are the server's; one without usage gets one token an event."""
    first = answer.arrivals[0] if answer.arrivals else answer.end
    last = answer.arrivals[-1] if answer.arrivals else answer.end
    usage = answer.usage
    return ServedRequest(
        num_input_tokens=usage.prompt_tokens if usage else num_input_tokens,
        num_output_tokens=usage.completion_tokens if usage else len(answer.arrivals),
        ttft=first - answer.start,
        e2el=last - answer.start,
        itl=[later - earlier for earlier, later in itertools.pairwise(answer.arrivals)],
        failed=answer.error is not None,
        start=answer.start - run_start,
        arrivals=[at - run_start for at in answer.arrivals],
        error=answer.error,
    )


@dataclass(frozen=True, slots=True)
class Objectives:
    """Service-level objectives in ms; a request is good if it meets all of them."""

    limits_ms: dict[str, float]

    def met_by(self, request: RequestTimes) -> bool:
        """A request of one token has no TPOT, so that it cannot miss that objective."""
        return not request.failed and all(
            1000 * seconds <= limit for name, limit in self.limits_ms.items() for seconds in METRICS[name](request)
        )


def parse_objectives(words: Sequence[str]) -> Objectives:
    """`ttft:200 tpot:50 e2el:5000`, milliseconds. Raises InvalidRequestError."""
    limits: dict[str, float] = {}
    for word in words:
        name, _, text = word.partition(":")
        try:
            limit = float(text)
        except ValueError:
            limit = math.nan
        if name not in SLO_METRICS or not 0 < limit < math.inf:
            raise InvalidRequestError(
                f"An objective is one of {', '.join(SLO_METRICS)} and milliseconds, like ttft:200, got {word!r}.",
                field="goodput",
                value=word,
            )
        limits[name] = limit
    return Objectives(limits)


@dataclass(slots=True)
class LoadRun(Measurement):
    """From the first request to the last one's end, and what it cost the generator.

    `client_lags_s`: how late requests left, the wait for --max-concurrency not counted.
    """

    requests: list[ServedRequest]
    client_cpu_s: float
    client_lags_s: list[float]


@dataclass(slots=True)
class ServeResult:
    """One run at one traffic shape, or `of_trace`: its requests came at times of their own, whatever `traffic` says.

    `num_cut` requests were shortened to fit. `comparisons` is empty unless asked for.
    """

    run: LoadRun
    traffic: Traffic
    max_concurrency: int | None
    objectives: Objectives | None = None
    metrics: Sequence[str] = tuple(METRICS)
    percentiles: Sequence[float] = (50, 90, 99)
    of_trace: bool = False
    num_cut: int = 0
    comparisons: Sequence[Comparison] = ()

    def goodput(self) -> float | None:
        """Good requests a second; None without objectives."""
        if self.objectives is None:
            return None
        return sum(map(self.objectives.met_by, self.run.requests)) / self.run.duration

    def errors(self) -> dict[str, int]:
        """Message -> how many requests failed with it."""
        return dict(Counter(request.error for request in self.run.requests if request.error is not None))

    def to_dict(self, *, details: bool = False) -> dict[str, Any]:
        """`details` adds a record a request."""
        result = self.run.to_dict(self.metrics, self.percentiles)
        traffic = {
            "request_rate": _finite(self.traffic.request_rate),
            "ramp_up_strategy": self.traffic.ramp_up,
            "ramp_up_end_rps": self.traffic.end_rate,
            "burstiness": _finite(self.traffic.burstiness),
        }
        result |= {
            "request_goodput": self.goodput(),
            "total_output_events": sum(len(request.arrivals) for request in self.run.requests if not request.failed),
            **(dict.fromkeys(traffic) if self.of_trace else traffic),
            "max_concurrency": self.max_concurrency,
            "errors": self.errors(),
            "client_cpu_share": self.run.client_cpu_s / self.run.duration,
            "client_max_lag_ms": 1000 * max(self.run.client_lags_s, default=0.0),
        }
        if details:
            result["requests"] = [_record(request) for request in self.run.requests]
        result["num_cut"] = self.num_cut
        if self.comparisons:
            result["metrics_check"] = {one.name: one.to_dict() for one in self.comparisons}
        return result


def _finite(value: float) -> float | str:
    """JSON has no infinite numbers."""
    return "inf" if value == math.inf else value


def _record(request: ServedRequest) -> dict[str, Any]:
    return {
        "start": request.start,
        "num_input_tokens": request.num_input_tokens,
        "num_output_tokens": request.num_output_tokens,
        "ttft": request.ttft,
        "e2el": request.e2el,
        "itl": request.itl,
        "error": request.error,
    }
