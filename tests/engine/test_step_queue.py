"""Steps in flight: never more than asked for, collected in order, and none after one that failed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from quire.engine.step_queue import StepQueue
from quire.errors import EngineDeadError


@dataclass(frozen=True)
class Step:
    number: int
    num_tokens: int


class Doubling:
    """Computes a step's number twice over, unless that is odd."""

    def __init__(self) -> None:
        self.submitted: deque[Step] = deque()
        self.running = True

    def submit(self, plan: Step) -> None:
        self.submitted.append(plan)

    def collect(self) -> int:
        step = self.submitted.popleft()
        if step.number % 2:
            raise ValueError(f"{step.number} is odd")
        return 2 * step.number

    def shutdown(self) -> None:
        self.running = False


def steps(*numbers: int) -> Callable[[], Step | None]:
    """What plans those, one a call."""
    plans = iter([Step(number, num_tokens=10) for number in numbers])
    return lambda: next(plans, None)


@pytest.mark.parametrize("max_in_flight", [1, 2, 3])
def test_as_many_as_asked_for_are_in_flight_and_come_back_in_order(max_in_flight: int) -> None:
    executor, plan = Doubling(), steps(2, 4, 6, 8)
    queue = StepQueue(executor, max_in_flight)
    assert not queue
    for num_taken, number in enumerate((2, 4, 6, 8)):
        queue.fill(plan)
        assert len(executor.submitted) == min(max_in_flight, 4 - num_taken)
        assert queue.take() == (Step(number, 10), 2 * number)
    queue.fill(plan)
    assert not queue
    assert (queue.num_steps, queue.step_tokens.total) == (4, 40)


def test_what_failed_is_told_to_all_who_come_after() -> None:
    queue = StepQueue(Doubling(), 2)
    queue.fill(steps(3, 4))
    with pytest.raises(EngineDeadError, match="a step failed with ValueError: 3 is odd"):
        queue.take()
    assert not queue, "nothing continues on a step that failed"
    with pytest.raises(EngineDeadError, match="3 is odd"):
        queue.check_alive()
    queue.shutdown()
    with pytest.raises(EngineDeadError, match="3 is odd"):
        queue.check_alive()


def test_after_shutdown_nothing_is_alive() -> None:
    executor = Doubling()
    queue = StepQueue(executor, 1)
    queue.check_alive()
    queue.shutdown()
    queue.shutdown()
    assert not executor.running
    with pytest.raises(EngineDeadError, match="it was shut down"):
        queue.check_alive()
