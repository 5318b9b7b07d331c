"""The steps that were planned and not committed yet, in order: how an engine of any kind drives its executor."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from quire.core.embedding import EncodePlan
from quire.core.stats import StepTokens
from quire.core.step import StepPlan
from quire.errors import EngineDeadError
from quire.worker.executor import StepExecutor

Plan = TypeVar("Plan", bound=StepPlan | EncodePlan)
Result = TypeVar("Result")


class StepQueue(Generic[Plan, Result]):
    """Keeps up to `max_in_flight` steps submitted, and counts those that were computed.

    After a failed step the state of compute is unknown, and nothing may continue on it: `fill` and `take` raise
    EngineDeadError when one fails, and `check_alive`, which comes before them, from then on.
    """

    def __init__(self, executor: StepExecutor[Plan, Result], max_in_flight: int) -> None:
        self.executor = executor
        self._max_in_flight = max_in_flight
        self._in_flight: deque[Plan] = deque()
        self._death: str | None = None
        self.num_steps = 0
        self.step_tokens = StepTokens()

    def __bool__(self) -> bool:
        return bool(self._in_flight)

    def fill(self, plan: Callable[[], Plan | None]) -> bool:
        """Submit what `plan` returns until enough is in flight, or it has nothing; whether anything is."""
        while len(self._in_flight) < self._max_in_flight:
            step = plan()
            if step is None:
                break
            self._in_flight.append(step)
            try:
                self.executor.submit(step)
            except Exception as error:
                raise self._died(error) from error
        return bool(self._in_flight)

    def take(self) -> tuple[Plan, Result]:
        """The oldest step and its result; waits for it."""
        try:
            result = self.executor.collect()
        except Exception as error:
            raise self._died(error) from error
        step = self._in_flight.popleft()
        self.num_steps += 1
        self.step_tokens.add(step.num_tokens)
        return step, result

    def check_alive(self) -> None:
        if self._death is not None:
            raise EngineDeadError(f"The engine stopped because {self._death}.")

    def shutdown(self) -> None:
        """Stop the executor; what is in flight is not waited for. Idempotent."""
        self._death = self._death or "it was shut down"
        self.executor.shutdown()

    def _died(self, error: Exception) -> EngineDeadError:
        self._death = f"a step failed with {type(error).__name__}: {error}"
        self._in_flight.clear()
        return EngineDeadError(f"The engine stopped because {self._death}.")
