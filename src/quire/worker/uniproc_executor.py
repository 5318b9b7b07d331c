"""One worker in this process, on a thread of its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from quire.config import WorkerConfig
from quire.core.embedding import EncodePlan, EncodeResult
from quire.core.kv_layout import KVCacheConfig
from quire.core.step import StepPlan, StepResult
from quire.worker.encode_worker import EncodeWorker
from quire.worker.worker import Worker

Plan = TypeVar("Plan")
Result = TypeVar("Result")


class WorkerThread(Generic[Plan, Result]):
    """The thread lets control plan while torch computes, and lets Ctrl-C interrupt the wait and never the step."""

    def __init__(self, execute: Callable[[Plan], Result]) -> None:
        self._execute = execute
        self._thread = ThreadPoolExecutor(1, "quire-worker")
        self._results: deque[Future[Result]] = deque()

    def submit(self, plan: Plan) -> None:
        self._results.append(self._thread.submit(self._execute, plan))

    def collect(self) -> Result:
        result = self._results[0].result()
        self._results.popleft()
        return result

    def shutdown(self) -> None:
        self._thread.shutdown(wait=True)
        self._results.clear()


class UniprocExecutor(WorkerThread[StepPlan, StepResult]):
    """An Executor."""

    def __init__(self, config: WorkerConfig) -> None:
        self._worker = Worker(config)
        super().__init__(self._worker.execute)

    def allocate_kv_cache(self, config: KVCacheConfig) -> None:
        self._worker.allocate_kv_cache(config)


class UniprocEncodeExecutor(WorkerThread[EncodePlan, EncodeResult]):
    """An EncodeExecutor."""

    def __init__(self, config: WorkerConfig) -> None:
        super().__init__(EncodeWorker(config).execute)
