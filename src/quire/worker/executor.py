"""The bridge: all that the engine knows of the compute tower. Imports no torch."""

from __future__ import annotations

import importlib
from typing import Protocol, cast

from quire.config import WorkerConfig
from quire.core.kv_layout import KVCacheConfig
from quire.core.step import StepPlan, StepResult


class Executor(Protocol):
    """Carries out step plans, strictly in the order they were submitted.

    Because steps run in order, control may hand a freed block to another sequence while a step that reads it is
    still in flight: the later step writes after the earlier one has read.
    """

    def allocate_kv_cache(self, config: KVCacheConfig) -> None:
        """Reserve the KV cache; once, before the first step."""

    def submit(self, plan: StepPlan) -> None:
        """Queue a step; returns at once where the executor computes elsewhere."""

    def collect(self) -> StepResult:
        """The result of the oldest submitted step; waits for it. Raises what the step raised."""

    def shutdown(self) -> None:
        """Stop and free everything; idempotent."""


EXECUTORS = {
    "uniproc": "quire.worker.uniproc_executor:UniprocExecutor",
    "null": "quire.worker.null_executor:NullExecutor",
}
"""Named by string so that choosing an executor, not importing this file, is what loads torch."""


def make_executor(name: str, config: WorkerConfig) -> Executor:
    """Load the model and return its executor."""
    module, attribute = EXECUTORS[name].split(":")
    return cast(Executor, getattr(importlib.import_module(module), attribute)(config))
