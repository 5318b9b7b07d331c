"""The bridge: all that the engine knows of the compute tower. Imports no torch."""

from __future__ import annotations

from typing import Protocol, TypeVar, cast

from quire.checkpoint.checkpoint import Checkpoint
from quire.config import WorkerConfig
from quire.core.embedding import EncodePlan, EncodeResult
from quire.core.kv_layout import KVCacheConfig
from quire.core.places import load_place
from quire.core.step import StepPlan, StepResult

Plan = TypeVar("Plan", contravariant=True)
Result = TypeVar("Result", covariant=True)


class StepExecutor(Protocol[Plan, Result]):
    """Carries out plans, strictly in the order they were submitted.

    Because steps run in order, control may hand a freed block to another sequence while a step that reads it is
    still in flight: the later step writes after the earlier one has read.
    """

    def submit(self, plan: Plan, /) -> None:
        """Queue a step; returns at once where the executor computes elsewhere."""

    def collect(self) -> Result:
        """The result of the oldest submitted step; waits for it. Raises what the step raised."""

    def shutdown(self) -> None:
        """Stop and free everything; idempotent."""


class Executor(StepExecutor[StepPlan, StepResult], Protocol):
    """Of a model that generates."""

    def allocate_kv_cache(self, config: KVCacheConfig) -> None:
        """Reserve the KV cache; once, before the first step."""

    def prepare_grammar(self, grammar: str, timeout_s: float) -> bool:
        """Compile it beside the steps; whether that is over once so much time has passed. A step with a row that follows it
        waits otherwise."""


EncodeExecutor = StepExecutor[EncodePlan, EncodeResult]


EXECUTORS = {
    "uniproc": "quire.worker.uniproc_executor:UniprocExecutor",
    "null": "quire.worker.null_executor:NullExecutor",
}
ENCODE_EXECUTORS = {
    "uniproc": "quire.worker.uniproc_encode_executor:UniprocEncodeExecutor",
    "null": "quire.worker.null_executor:NullEncodeExecutor",
}
"""Named by string so that choosing an executor, not importing this file, is what loads it and what it needs."""


def make_executor(name: str, config: WorkerConfig, checkpoint: Checkpoint) -> Executor:
    """Load the model from `checkpoint`, whose weights nobody has opened, and return its executor."""
    return cast(Executor, load_place(EXECUTORS[name])(config, checkpoint))


def make_encode_executor(name: str, config: WorkerConfig, checkpoint: Checkpoint) -> EncodeExecutor:
    """Load the encoder from `checkpoint`, whose weights nobody has opened, and return its executor."""
    return cast(EncodeExecutor, load_place(ENCODE_EXECUTORS[name])(config, checkpoint))
