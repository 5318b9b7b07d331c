"""Records of requests, what an engine says, and a server around one, for tests of answers, metrics, traces and logs."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

from quire.config import ServerConfig
from quire.core.stats import EngineStats
from quire.core.wire import EngineStatus
from quire.server.admission import Admission
from quire.server.metrics import Metrics
from quire.server.request_record import Origin, RequestRecord


def make_record(**fields: Any) -> RequestRecord:
    """100 s on the clock: 0.5 s queued, 1.5 s of prefill, 10 tokens in 2 s, gone 0.25 s later."""
    known: dict[str, Any] = {
        "request_id": "cmpl-1",
        "model": "smollm2",
        "num_prompt_tokens": 30,
        "num_sample_tokens": Counter({0: 11}),
        "num_cached_tokens": 16,
        "max_tokens": 64,
        "finish_reason": "stop",
        "first_scheduled_time": 100.5,
        "first_token_time": 102.0,
        "last_token_time": 104.0,
        "finished_time": 104.25,
    }
    origin = {
        "operation": "chat", "route": "/v1/chat/completions", "client": "", "tenant": "", "x_request_id": None,
        "traceparent": None, "tracestate": None, "stream": False, "arrival_time": 100.0,
    }  # fmt: skip
    for name in fields.keys() & origin.keys():
        origin[name] = fields.pop(name)
    return RequestRecord(Origin(**origin), **{**known, **fields})


def status(stats: EngineStats) -> EngineStatus:
    """An engine's newest heartbeat."""
    return EngineStatus("ready", sent_time=0.0, stats=stats)


def generating_server(generate: Any, config: ServerConfig | None = None, tracer: Any = None) -> Any:
    """What routes know of a server whose engine generates so."""
    return SimpleNamespace(
        config=config or ServerConfig(),
        model_name="tiny",
        llm=SimpleNamespace(generate=generate),
        admission=Admission(1, 1),
        metrics=Metrics("tiny"),
        tracer=tracer,
    )
