"""Who goes first: in the waiting line, in a step, and when memory runs out. A policy is a function and one registry line.

A policy maps a sequence to its place in a total order: smaller runs first, the greatest is preempted first. The
place must not change while the sequence lives. A policy that remembers (see `fair_policy`) is a class.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from functools import partial
from typing import Protocol

from quire.config import SchedulingPolicy
from quire.core.sequence import Sequence
from quire.scheduler.fair_policy import FairPolicy

Place = tuple[float, ...]


class Policy(Protocol):
    """Hears of every sequence once when it arrives and once when it ends, before and after it stands in a queue."""

    def place(self, sequence: Sequence) -> Place: ...

    def arrived(self, sequence: Sequence, num_shared: int) -> None:
        """`num_shared` of its known tokens need no computing: a fork shares them."""

    def started(self, sequence: Sequence) -> None:
        """It runs; again after each preemption."""

    def finished(self, sequence: Sequence) -> None: ...


class FixedOrder:
    """A policy that is a function of the sequence alone."""

    def __init__(self, place: Callable[[Sequence], Place]) -> None:
        self.place = place

    def arrived(self, sequence: Sequence, num_shared: int) -> None: ...

    def started(self, sequence: Sequence) -> None: ...

    def finished(self, sequence: Sequence) -> None: ...


def first_come_first_served(sequence: Sequence) -> Place:
    return sequence.arrival_time, sequence.seq_id


def by_priority(sequence: Sequence) -> Place:
    """Smaller `priority` first; among equals first come, first served."""
    return sequence.priority, sequence.arrival_time, sequence.seq_id


POLICIES: dict[SchedulingPolicy, Callable[[], Policy]] = {
    "fcfs": partial(FixedOrder, first_come_first_served),
    "priority": partial(FixedOrder, by_priority),
    "fair": FairPolicy,
}


class SequenceQueue:
    """Sequences in a policy's order. `sequences` is to be read only."""

    def __init__(self, policy: Policy) -> None:
        self.sequences: list[Sequence] = []
        self._place = policy.place

    def __len__(self) -> int:
        return len(self.sequences)

    def would_lead(self, sequence: Sequence) -> bool:
        """Whether nobody here comes before it."""
        return not self.sequences or self._place(sequence) < self._place(self.sequences[0])

    def add(self, sequence: Sequence) -> None:
        insort(self.sequences, sequence, key=self._place)

    def remove(self, sequence: Sequence) -> None:
        index = bisect_left(self.sequences, self._place(sequence), key=self._place)
        assert self.sequences[index] is sequence, f"{sequence!r} is not in this queue"
        del self.sequences[index]
