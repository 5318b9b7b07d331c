"""One worker in this process, on a thread of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from quire.checkpoint.checkpoint import Checkpoint
from quire.config import WorkerConfig
from quire.core.kv_layout import KVCacheConfig
from quire.core.step import StepPlan, StepResult
from quire.worker.worker import Worker

Plan = TypeVar("Plan")
Result = TypeVar("Result")
Answer = TypeVar("Answer")


class WorkerThread(ABC, Generic[Plan, Result]):
    """The thread lets control plan while the worker computes, and lets Ctrl-C interrupt the wait and never the step.

    All of torch runs on it, loading included: OpenMP keeps a team of threads for each thread that computes, and with two
    teams on the cores of one, idle threads go to sleep after every operator instead of waiting for the next.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "quire-worker")
        self._results: deque[Future[Result]] = deque()

    def _run(self, function: Callable[[], Answer]) -> Answer:
        """On the thread, and wait; what fails here ends it."""
        try:
            return self._thread.submit(function).result()
        except BaseException:
            self._thread.shutdown(wait=False)
            raise

    @abstractmethod
    def execute(self, plan: Plan) -> Result:
        """One step, on the thread."""

    def submit(self, plan: Plan) -> None:
        self._results.append(self._thread.submit(self.execute, plan))

    def collect(self) -> Result:
        result = self._results[0].result()
        self._results.popleft()
        return result

    def shutdown(self) -> None:
        self._thread.shutdown(wait=True)
        self._results.clear()


class UniprocExecutor(WorkerThread[StepPlan, StepResult]):
    """An Executor."""

    def __init__(self, config: WorkerConfig, checkpoint: Checkpoint) -> None:
        super().__init__()
        self._worker = self._run(lambda: Worker(config, checkpoint))

    def allocate_kv_cache(self, config: KVCacheConfig) -> None:
        self._run(lambda: self._worker.allocate_kv_cache(config))

    def execute(self, plan: StepPlan) -> StepResult:
        return self._worker.execute(plan)
