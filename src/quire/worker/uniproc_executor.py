"""One worker in this process, on a thread of its own."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor

from quire.config import WorkerConfig
from quire.core.kv_layout import KVCacheConfig
from quire.core.step import StepPlan, StepResult
from quire.worker.worker import Worker


class UniprocExecutor:
    """The thread lets control plan while torch computes, and lets Ctrl-C interrupt the wait and never the step."""

    def __init__(self, config: WorkerConfig) -> None:
        self._worker = Worker(config)
        self._thread = ThreadPoolExecutor(1, "quire-worker")
        self._results: deque[Future[StepResult]] = deque()

    def allocate_kv_cache(self, config: KVCacheConfig) -> None:
        self._worker.allocate_kv_cache(config)

    def submit(self, plan: StepPlan) -> None:
        self._results.append(self._thread.submit(self._worker.execute, plan))

    def collect(self) -> StepResult:
        result = self._results[0].result()
        self._results.popleft()
        return result

    def shutdown(self) -> None:
        self._thread.shutdown(wait=True)
        self._results.clear()
