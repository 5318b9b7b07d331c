"""Who goes first: in the waiting line, in a step, and when memory runs out. A policy is a function and one registry line.

A policy maps a sequence to its place in a total order: smaller runs first, the greatest is preempted first. The
place must not change while the sequence lives.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable

from quire.config import SchedulingPolicy
from quire.core.sequence import Sequence

Place = tuple[float, ...]
Policy = Callable[[Sequence], Place]


def first_come_first_served(sequence: Sequence) -> Place:
    return sequence.arrival_time, sequence.seq_id


def by_priority(sequence: Sequence) -> Place:
    """Smaller `priority` first; among equals first come, first served."""
    return sequence.priority, sequence.arrival_time, sequence.seq_id


POLICIES: dict[SchedulingPolicy, Policy] = {
    "fcfs": first_come_first_served,
    "priority": by_priority,
}


class SequenceQueue:
    """Sequences in a policy's order. `sequences` is to be read only."""

    def __init__(self, policy: Policy) -> None:
        self.sequences: list[Sequence] = []
        self._policy = policy

    def __len__(self) -> int:
        return len(self.sequences)

    def add(self, sequence: Sequence) -> None:
        insort(self.sequences, sequence, key=self._policy)

    def remove(self, sequence: Sequence) -> None:
        index = bisect_left(self.sequences, self._policy(sequence), key=self._policy)
        assert self.sequences[index] is sequence, f"{sequence!r} is not in this queue"
        del self.sequences[index]
