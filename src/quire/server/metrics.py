"""Prometheus metrics: what is counted for each request, and the page that shows it all.

Label values come from a short list known beforehand, never from a client, so the number of series is constant.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.multiprocess import MultiProcessCollector

from quire.core.wire import EngineStatus
from quire.server.engine_metrics import EngineCollector
from quire.server.request_record import RequestRecord
from quire.server.supervisor import MULTIPROCESS_DIR

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

TTFT_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
    *(160.0, 640.0, 2560.0),
)
TOKEN_GAP_BUCKETS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
LATENCY_BUCKETS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0),
    *(1920.0, 7680.0),
)
COUNT_BUCKETS = tuple(float(digit * 10**power) for power in range(7) for digit in (1, 2, 5))
N_BUCKETS = (1.0, 2.0, 5.0, 10.0, 20.0)
FINISH_REASONS = ("stop", "length", "abort", "error")
NO_ROUTE = "none"

REQUEST_HISTOGRAMS: tuple[tuple[str, str, tuple[float, ...], str], ...] = (
    ("request_prompt_tokens", "Prompt tokens of a request.", COUNT_BUCKETS, "num_prompt_tokens"),
    ("request_generation_tokens", "Output tokens of a request.", COUNT_BUCKETS, "num_generation_tokens"),
    (
        "request_max_num_generation_tokens",
        "Output tokens of the longest sample.",
        COUNT_BUCKETS,
        "max_num_generation_tokens",
    ),
    ("request_params_n", "The parameter n.", N_BUCKETS, "n"),
    ("request_params_max_tokens", "The parameter max_tokens, where given.", COUNT_BUCKETS, "max_tokens"),
    ("e2e_request_latency_seconds", "Arrival to end.", LATENCY_BUCKETS, "e2e_s"),
    ("request_queue_time_seconds", "Arrival to first planned step.", LATENCY_BUCKETS, "queue_s"),
    ("request_prefill_time_seconds", "First planned step to first token.", LATENCY_BUCKETS, "prefill_s"),
    ("request_decode_time_seconds", "First token to last token.", LATENCY_BUCKETS, "decode_s"),
    ("request_inference_time_seconds", "First planned step to last token.", LATENCY_BUCKETS, "inference_s"),
    ("request_time_per_output_token_seconds", "Seconds an output token after the first.", TOKEN_GAP_BUCKETS, "tpot_s"),
)
"""(name, help, buckets, attribute of RequestRecord); a value of None is not observed."""


class Metrics:
    """One API process's share, and the engine's newest figures.

    Several API processes write to files in a folder they share, and each of them can show the sum. Counts and
    times survive a jump of the wall clock: only the monotonic clock is read, and no creation times are shown.
    """

    def __init__(
        self, model_name: str, namespace: str = "quire", get_status: Callable[[], EngineStatus | None] = lambda: None
    ) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        prefix = f"{namespace}:"
        labels = {"model_name": model_name, "engine": "0"}
        names, values = tuple(labels), tuple(labels.values())
        self.engine = EngineCollector(prefix, labels, get_status)
        self._multiprocess = bool(os.environ.get(MULTIPROCESS_DIR))
        self.namespace = namespace
        self._own = registry = CollectorRegistry()
        if not self._multiprocess:
            registry.register(self.engine)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(prefix + name, text, names, registry=registry, buckets=buckets).labels(*values)

        self._first_token = histogram("time_to_first_token_seconds", "Arrival to first token.", TTFT_BUCKETS)
        self._token_gap = histogram("inter_token_latency_seconds", "Time between two tokens.", TOKEN_GAP_BUCKETS)
        self._of_request = [
            (histogram(name, text, buckets), attribute) for name, text, buckets, attribute in REQUEST_HISTOGRAMS
        ]
        finished = Counter(
            prefix + "request_success", "Requests that ended.", (*names, "finished_reason"), registry=registry
        )
        self._finished = {reason: finished.labels(*values, reason) for reason in FINISH_REASONS}
        # Statuses are this program's own, a handful for each route.
        self._responses = Counter(
            prefix + "http_responses", "HTTP responses.", (*names, "route", "status"), registry=registry
        )
        self._labels = values

    def observe_first_token(self, seconds: float) -> None:
        """Seconds from arrival to the first token, observed when it comes."""
        self._first_token.observe(max(0.0, seconds))

    def observe_tokens(self, gap_s: float) -> None:
        """Seconds between two outputs of one sample, observed as they stream."""
        self._token_gap.observe(max(0.0, gap_s))

    def observe_request(self, record: RequestRecord) -> None:
        """A request has ended. One that was refused tells nothing of the engine: zeros of it would hide how others fare."""
        if record.finish_reason is None:
            return
        for histogram, attribute in self._of_request:
            value = getattr(record, attribute)
            if value is not None:
                histogram.observe(value)
        self._finished[record.finish_reason].inc()

    def observe_response(self, route: str | None, status: int) -> None:
        """An HTTP response has begun. `route`: the matched route's template, never a path; None if none matched."""
        self._responses.labels(*self._labels, route or NO_ROUTE, str(status)).inc()

    def render(self) -> bytes:
        """The text format (CONTENT_TYPE). With several API processes this reads their files: call it on a thread."""
        return generate_latest(self.whole())

    def whole(self) -> CollectorRegistry:
        """What all API processes have counted so far. With several of them to collect it reads their files, too."""
        if not self._multiprocess:
            return self._own
        whole = CollectorRegistry()
        MultiProcessCollector(whole)  # type: ignore[no-untyped-call]
        whole.register(self.engine)
        return whole
