"""One worker in this process: inline, or on a thread of its own when several steps may be in flight."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor

from quire.config import WorkerConfig
from quire.core.kv_layout import KVCacheConfig
from quire.core.step import StepPlan, StepResult
from quire.worker.worker import Worker


class UniprocExecutor:
    """With one step in flight a thread would only add a hand-over; with two, control plans while torch computes."""

    def __init__(self, config: WorkerConfig) -> None:
        self._worker = Worker(config)
        self._thread = ThreadPoolExecutor(1, "quire-worker") if config.num_steps_in_flight > 1 else None
        self._results: deque[Future[StepResult]] = deque()

    def allocate_kv_cache(self, config: KVCacheConfig) -> None:
        self._worker.allocate_kv_cache(config)

    def submit(self, plan: StepPlan) -> None:
        if self._thread is not None:
            self._results.append(self._thread.submit(self._worker.execute, plan))
            return
        result: Future[StepResult] = Future()
        result.set_result(self._worker.execute(plan))
        self._results.append(result)

    def collect(self) -> StepResult:
        return self._results.popleft().result()

    def shutdown(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=True)
        self._results.clear()
