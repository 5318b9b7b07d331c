"""On which thread of this process a worker computes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, Protocol, TypeVar

from quire.config import WorkerConfig
from quire.host.interrupts import unbroken
from quire.kernels.native_module import use_instruction_set
from quire.kernels.ops import Ops

Plan = TypeVar("Plan")
Result = TypeVar("Result")
Answer = TypeVar("Answer")


class StepThread(Protocol[Plan, Result]):
    """Calls the worker, in the order it is told to."""

    def run(self, function: Callable[[], Answer]) -> Answer:
        """Call it, and wait."""

    def submit(self, execute: Callable[[Plan], Result], plan: Plan) -> None:
        """Queue one step."""

    def collect(self) -> Result:
        """The result of the oldest step. Raises what the step raised."""

    def shutdown(self) -> None: ...


class OwnThread(Generic[Plan, Result]):
    """Lets control plan while the worker computes.

    All of torch runs on it, loading included: OpenMP keeps a team of threads for each thread that computes, and with two
    teams on the cores of one, idle threads go to sleep after every operator instead of waiting for the next.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "quire-worker")
        self._results: deque[Future[Result]] = deque()

    def run(self, function: Callable[[], Answer]) -> Answer:
        """What fails here ends the thread."""
        try:
            return self._thread.submit(function).result()
        except BaseException:
            self._thread.shutdown(wait=False)
            raise

    def submit(self, execute: Callable[[Plan], Result], plan: Plan) -> None:
        self._results.append(self._thread.submit(execute, plan))

    def collect(self) -> Result:
        result = self._results[0].result()
        self._results.popleft()
        return result

    def shutdown(self) -> None:
        self._thread.shutdown(wait=True)
        self._results.clear()


class CallersThread(Generic[Plan, Result]):
    """The thread that waits for a step computes it: none has to be woken, which takes as long as all of control (docs/lab.md).

    Where it may be interrupted at all (`DeferredInterrupt`), that waits for the end of the step.
    """

    def __init__(self) -> None:
        self._steps: deque[tuple[Callable[[Plan], Result], Plan]] = deque()

    def run(self, function: Callable[[], Answer]) -> Answer:
        return function()

    def submit(self, execute: Callable[[Plan], Result], plan: Plan) -> None:
        self._steps.append((execute, plan))

    def collect(self) -> Result:
        with unbroken:
            execute, plan = self._steps.popleft()
            return execute(plan)

    def shutdown(self) -> None:
        self._steps.clear()


def step_thread(config: WorkerConfig) -> StepThread[Any, Any]:
    return OwnThread() if config.own_thread else CallersThread()


def prepare_thread(ops: Ops, config: WorkerConfig) -> None:
    """The one that asks: it may be another one each time, or another worker's too."""
    ops.use_num_threads(config.num_threads)
    use_instruction_set(config.instruction_set)
