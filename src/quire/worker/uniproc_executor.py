"""One worker in this process."""

from __future__ import annotations

from quire.checkpoint.checkpoint import Checkpoint
from quire.config import WorkerConfig
from quire.core.kv_layout import KVCacheConfig
from quire.core.step import StepPlan, StepResult
from quire.worker.step_threads import CallersThread, OwnThread, StepThread
from quire.worker.worker import Worker


class UniprocExecutor:
    """An Executor."""

    def __init__(self, config: WorkerConfig, checkpoint: Checkpoint) -> None:
        self._thread: StepThread[StepPlan, StepResult] = OwnThread() if config.own_thread else CallersThread()
        self._worker = self._thread.run(lambda: Worker(config, checkpoint))

    def allocate_kv_cache(self, config: KVCacheConfig) -> None:
        self._thread.run(lambda: self._worker.allocate_kv_cache(config))

    def submit(self, plan: StepPlan) -> None:
        self._thread.submit(self._worker.execute, plan)

    def collect(self) -> StepResult:
        return self._thread.collect()

    def shutdown(self) -> None:
        self._thread.shutdown()
