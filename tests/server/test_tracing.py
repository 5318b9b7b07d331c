"""Traces as a collector receives them."""

from __future__ import annotations

import gzip
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from tests.server.own_server import own_server
from tests.server.records import make_record

from quire.cli.main import main
from quire.errors import InvalidRequestError, QuireError
from quire.server.tracing import phases
from quire.server.tracing_setup import EXPORTER, make_tracer


class Collector:
    """A small OTLP/HTTP collector."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.services: set[str] = set()
        self.spans: list[Span] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                collector.take(self.path, body)
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *args: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        self.thread.start()

    def take(self, path: str, body: bytes) -> None:
        self.paths.append(path)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.services |= {a.value.string_value for a in resource.resource.attributes if a.key == "service.name"}
            for scope in resource.scope_spans:
                self.spans += scope.spans

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    def named(self, name: str) -> Span:
        (span,) = [span for span in self.spans if span.name == name]
        return span


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


@pytest.fixture
def nothing_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.cli.serve.serve", lambda *_: pytest.fail("the server was started"))


def trace(collector: Collector, **fields: Any) -> None:
    tracer = make_tracer(collector.url)
    assert tracer is not None
    tracer.trace(make_record(**fields))
    tracer.shutdown()


def seconds(span: Span) -> float:
    return (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9


def test_a_request_is_a_span_with_its_phases(collector: Collector) -> None:
    trace(collector)
    assert (collector.paths, collector.services) == (["/v1/traces"], {"quire"})
    whole = collector.named("llm_request")
    assert whole.parent_span_id == b""
    assert whole.kind == Span.SPAN_KIND_SERVER
    assert whole.status.code == Status.STATUS_CODE_UNSET
    children = [collector.named(name) for name in ("queue", "prefill", "decode")]
    assert [round(seconds(span), 6) for span in (whole, *children)] == [4.25, 0.5, 1.5, 2.25]
    assert len(collector.spans) == 4
    for before, child in zip([None, *children], children, strict=False):
        assert child.parent_span_id == whole.span_id
        assert child.trace_id == whole.trace_id
        start = whole.start_time_unix_nano if before is None else before.end_time_unix_nano
        assert child.start_time_unix_nano == start
    assert children[-1].end_time_unix_nano == whole.end_time_unix_nano


def test_spans_are_placed_on_the_wall_clock(collector: Collector) -> None:
    now = time.monotonic()
    earliest = time.time() - 5
    trace(collector, arrival_time=now - 4, first_scheduled_time=now - 3, first_token_time=now - 2, finished_time=now)
    whole = collector.named("llm_request")
    assert earliest < whole.start_time_unix_nano / 1e9 < whole.end_time_unix_nano / 1e9 <= time.time()


def test_attributes_have_the_conventions_names(collector: Collector) -> None:
    trace(collector)
    found = {a.key: a.value for a in collector.named("llm_request").attributes}
    assert found["gen_ai.operation.name"].string_value == "chat"
    assert found["gen_ai.request.model"].string_value == "smollm2"
    assert found["gen_ai.response.id"].string_value == "cmpl-1"
    assert found["gen_ai.response.finish_reasons"].array_value.values[0].string_value == "stop"
    assert found["gen_ai.usage.input_tokens"].int_value == 30
    assert found["gen_ai.usage.output_tokens"].int_value == 11
    assert found["gen_ai.usage.cache_read.input_tokens"].int_value == 16
    assert found["http.response.status_code"].int_value == 200
    assert "error.type" not in found
    from opentelemetry.semconv._incubating.attributes import gen_ai_attributes

    known = {value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI")}
    assert {key for key in found if key.startswith("gen_ai")} <= known


def test_the_clients_trace_is_continued(collector: Collector) -> None:
    trace(collector, traceparent="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", tracestate="vendor=1")
    whole = collector.named("llm_request")
    assert whole.trace_id.hex() == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert whole.parent_span_id.hex() == "00f067aa0ba902b7"
    assert whole.trace_state == "vendor=1"


@pytest.mark.parametrize("traceparent", ["", "x" * 10_000, "00-" + "0" * 32 + "-00f067aa0ba902b7-01", "00-é-\n"])
def test_a_broken_traceparent_starts_a_new_trace(collector: Collector, traceparent: str) -> None:
    trace(collector, traceparent=traceparent)
    assert collector.named("llm_request").parent_span_id == b""


def test_a_request_that_never_ran_was_queued_to_its_end(collector: Collector) -> None:
    trace(
        collector,
        first_scheduled_time=None,
        first_token_time=None,
        last_token_time=None,
        status=503,
        finish_reason="error",
        error="EngineDeadError",
    )
    assert {span.name for span in collector.spans} == {"llm_request", "queue"}
    whole = collector.named("llm_request")
    assert whole.status.code == Status.STATUS_CODE_ERROR
    assert seconds(collector.named("queue")) == seconds(whole)


def test_phases_never_end_before_they_start() -> None:
    record = make_record(first_scheduled_time=101.0, first_token_time=100.5, finished_time=100.2)
    assert all(end >= start for _, start, end in phases(record))


def test_what_a_server_did_last_is_told_before_it_ends(collector: Collector, smollm2: str) -> None:
    with own_server(smollm2, "--executor", "null", "--otlp-endpoint", collector.url) as server:
        with server.client() as client:
            client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1}).raise_for_status()
        server.process.terminate()
        assert server.wait_exit() == 0
    assert collector.named("llm_request")


def test_no_collector_costs_only_the_spans(caplog: pytest.LogCaptureFixture) -> None:
    gone = Collector()
    gone.close()
    trace(gone)
    assert "Failed to export spans" in caplog.text


@pytest.mark.parametrize(
    "endpoint", ["127.0.0.1:4318", "grpc://127.0.0.1:4317", "http://", "http://[::1", "http://h:x"]
)
@pytest.mark.usefixtures("nothing_started")
def test_an_endpoint_is_an_http_url(endpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InvalidRequestError, match="--otlp-endpoint must be an http"):
        make_tracer(endpoint)
    assert main(["serve", "--otlp-endpoint", endpoint]) == 1
    assert capsys.readouterr().err.startswith("error: --otlp-endpoint must be an http")


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "quire.server.tracing")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    with pytest.raises(QuireError, match=r"pip install 'quire\[otel\]'"):
        make_tracer("http://127.0.0.1:4318")


@pytest.mark.usefixtures("nothing_started")
@pytest.mark.parametrize("missing", [EXPORTER, EXPORTER.rpartition(".")[0]])
def test_missing_packages_are_named_before_anything_is_started(
    missing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, EXPORTER)
    monkeypatch.setitem(sys.modules, missing, None)
    assert main(["serve", "--otlp-endpoint", "http://127.0.0.1:4318"]) == 1
    assert f"{missing} is not installed: pip install" in capsys.readouterr().err


def test_no_endpoint_no_tracing() -> None:
    assert make_tracer(None) is None
