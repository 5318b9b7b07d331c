"""Traces of requests for OpenTelemetry: a span for the request and one each for queue, prefill and decode.

Spans are made from a request's times when it has ended, so tracing costs the engine nothing, and are sent on a thread
of the SDK's. Attributes follow the GenAI semantic conventions; a client's W3C traceparent is continued. This
module needs the extra `otel`; `tracing_setup` imports it when tracing is asked for.
"""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import urlsplit

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from quire import __version__
from quire.server.request_record import RequestRecord

EXPORT_TIMEOUT_S = 2.0
"""For one batch, its retries included. At shutdown the last batch is waited for as long."""


class RequestTracer:
    """Sends one trace a request to an OTLP/HTTP endpoint, such as http://127.0.0.1:4318. A collector that is away
    costs its spans and nothing else."""

    def __init__(self, endpoint: str) -> None:
        exporter = OTLPSpanExporter(_traces_url(endpoint), timeout=EXPORT_TIMEOUT_S)
        resource = Resource.create({"service.name": "quire", "service.version": __version__})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("quire", __version__)

    def trace(self, record: RequestRecord) -> None:
        """A request has ended."""
        # The monotonic clock decides every duration; the wall clock only says when it all was.
        offset_s = time.time() - time.monotonic()

        def wall_ns(moment: float) -> int:
            return int((moment + offset_s) * 1e9)

        end = max(record.origin.arrival_time, record.finished_time)
        span = self._tracer.start_span(
            "llm_request",
            context=_parent(record),
            kind=SpanKind.SERVER,
            attributes=span_attributes(record),
            start_time=wall_ns(record.origin.arrival_time),
        )
        if record.finish_reason == "error" or record.status >= 500:
            span.set_status(StatusCode.ERROR)
        inside = set_span_in_context(span)
        for name, start, stop in phases(record):
            child = self._tracer.start_span(name, context=inside, start_time=wall_ns(start))
            child.end(wall_ns(min(stop, end)))
        span.end(wall_ns(end))

    def shutdown(self) -> None:
        """Send what is left, within about EXPORT_TIMEOUT_S."""
        self._provider.shutdown()


def phases(record: RequestRecord) -> list[tuple[str, float, float]]:
    """(name, start, end) of the phases a request reached, in monotonic seconds; the last one ends with the request."""
    starts = [
        ("queue", record.origin.arrival_time),
        ("prefill", record.first_scheduled_time),
        ("decode", record.first_token_time),
    ]
    reached = [(name, start) for name, start in starts if start is not None]
    ends = [start for _, start in reached[1:]] + [record.finished_time]
    return [(name, start, max(start, end)) for (name, start), end in zip(reached, ends, strict=True)]


def span_attributes(record: RequestRecord) -> dict[str, Any]:
    """GenAI conventions where they have a name; what is not known is left out."""
    attributes = {
        "gen_ai.operation.name": record.origin.operation,
        "gen_ai.provider.name": "quire",
        "gen_ai.request.model": record.model,
        "gen_ai.response.model": record.model,
        "gen_ai.response.id": record.request_id,
        "gen_ai.request.max_tokens": record.max_tokens,
        "gen_ai.request.choice.count": record.n,
        "gen_ai.request.stream": record.origin.stream,
        "gen_ai.response.finish_reasons": None if record.finish_reason is None else [record.finish_reason],
        "gen_ai.response.time_to_first_chunk": record.ttft_s,
        "gen_ai.usage.input_tokens": record.num_prompt_tokens,
        "gen_ai.usage.output_tokens": record.num_generation_tokens,
        "gen_ai.usage.cache_read.input_tokens": record.num_cached_tokens,
        "http.route": record.origin.route,
        "http.response.status_code": record.status,
        "error.type": record.error,
        "quire.preemptions": record.num_preemptions,
    }
    return {name: value for name, value in attributes.items() if value is not None}


def _parent(record: RequestRecord) -> Context:
    """The client's span if it sent a valid traceparent, else none: an empty context, never this thread's own."""
    headers = {"traceparent": record.origin.traceparent, "tracestate": record.origin.tracestate}
    carrier = {name: value for name, value in headers.items() if value is not None}
    return TraceContextTextMapPropagator().extract(carrier, Context())


def _traces_url(endpoint: str) -> str:
    """An endpoint without a path means the protocol's own path."""
    parts = urlsplit(endpoint)
    return endpoint if parts.path not in ("", "/") else f"{parts.scheme}://{parts.netloc}/v1/traces"
