"""One worker in this process."""

from __future__ import annotations

from quire.checkpoint.checkpoint import Checkpoint
from quire.config import WorkerConfig
from quire.core.kv_layout import KVCacheConfig
from quire.core.step import StepPlan, StepResult
from quire.worker.step_threads import StepThread, step_thread
from quire.worker.worker import Worker


class UniprocExecutor:
    """An Executor."""

    def __init__(self, config: WorkerConfig, checkpoint: Checkpoint) -> None:
        self._thread: StepThread[StepPlan, StepResult] = step_thread(config)
        self._worker = self._thread.run(lambda: Worker(config, checkpoint))
        self.collect, self.shutdown = self._thread.collect, self._thread.shutdown

    def allocate_kv_cache(self, config: KVCacheConfig) -> None:
        self._thread.run(lambda: self._worker.allocate_kv_cache(config))

    def prepare_grammar(self, grammar: str, timeout_s: float) -> bool:
        return self._worker.prepare_grammar(grammar, timeout_s)

    def submit(self, plan: StepPlan) -> None:
        self._thread.submit(self._worker.execute, plan)
