"""What computes inside an `LLM`, for tests that look at it or lay hands on it."""

from __future__ import annotations

from typing import Any

from quire import LLM


def worker_of(llm: LLM) -> Any:
    """Of an engine in this process: a Worker or an EncodeWorker."""
    executor: Any = llm._engine.client.engine.steps.executor
    return executor._worker


def runner_of(llm: LLM) -> Any:
    return worker_of(llm)._runner
