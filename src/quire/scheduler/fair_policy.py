"""Fair shares between tenants: start-time fair queueing over tokens.

P. Goyal, H. Vin, H. Cheng, "Start-time Fair Queueing", SIGCOMM 1996; what a request costs, and that it is charged to a
counter of its tenant, is from Y. Sheng et al., "Fairness in Serving Large Language Models" (VTC), OSDI 2024.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.core.sequence import Sequence

OUTPUT_WEIGHT = 2
"""What an output token costs, in prompt tokens: it takes a step of its own, as VTC counts it."""
EXPECTED_OUTPUT = 64
"""Tokens that are charged on arrival, of those that may be generated: most requests leave the bound at the whole context."""
MAX_IDLE_TENANTS = 4096
"""Tenants remembered after their last sequence ended; one that is forgotten loses only what it had overdrawn."""


@dataclass(slots=True)
class Tenant:
    """`finish_tag`: the virtual time at which all that was charged so far would be served. Tags count prompt tokens."""

    finish_tag: int = 0
    last_start_tag: int = 0
    num_sequences: int = 0


@dataclass(slots=True)
class Ticket:
    """A live sequence: its place, and what its tenant was charged for it."""

    start_tag: int
    num_known: int
    """Known tokens at arrival, and below, how many of them were to be computed."""
    num_to_compute: int
    cost: int
    started: bool = False


class FairPolicy:
    """A sequence starts at its tenant's finish tag, or at the virtual time if the tenant was idle; smaller tags first.

    Virtual time is the largest tag of those that have started. A tenant that sends much moves its own tags into the
    future, so one that sends little is always near the front: it waits for at most one sequence of each other tenant
    beside those that run. What a sequence will cost is not known on arrival, and a place never changes: an expected output is charged
    then, and at the end the tenant's later sequences are charged the difference, or given it back; they still do not overtake its
    earlier ones.
    """

    def __init__(self) -> None:
        self._virtual_time = 0
        self._tickets: dict[int, Ticket] = {}
        self._busy: dict[str, Tenant] = {}
        self._idle: dict[str, Tenant] = {}
        """Longest idle first."""

    @property
    def num_tenants(self) -> int:
        """How many are remembered."""
        return len(self._busy) + len(self._idle)

    def place(self, sequence: Sequence) -> tuple[float, ...]:
        return self._tickets[sequence.seq_id].start_tag, sequence.arrival_time, sequence.seq_id

    def arrived(self, sequence: Sequence, num_shared: int) -> None:
        tenant = self._busy.get(sequence.tenant)
        if tenant is None:
            tenant = self._busy[sequence.tenant] = self._idle.pop(sequence.tenant, Tenant())
        tenant.num_sequences += 1
        start_tag = max(self._virtual_time, tenant.finish_tag, tenant.last_start_tag)
        num_to_compute = sequence.num_known - num_shared
        num_expected = min(sequence.max_num_tokens - sequence.num_known, EXPECTED_OUTPUT)
        cost = num_to_compute + OUTPUT_WEIGHT * num_expected
        tenant.last_start_tag = start_tag
        tenant.finish_tag = start_tag + cost
        self._tickets[sequence.seq_id] = Ticket(start_tag, sequence.num_known, num_to_compute, cost)

    def started(self, sequence: Sequence) -> None:
        ticket = self._tickets[sequence.seq_id]
        ticket.started = True
        self._virtual_time = max(self._virtual_time, ticket.start_tag)

    def finished(self, sequence: Sequence) -> None:
        ticket = self._tickets.pop(sequence.seq_id)
        tenant = self._busy[sequence.tenant]
        tenant.finish_tag -= ticket.cost - _used(ticket, sequence)
        tenant.num_sequences -= 1
        if tenant.num_sequences == 0:
            self._idle[sequence.tenant] = self._busy.pop(sequence.tenant)
            if len(self._idle) > MAX_IDLE_TENANTS:
                del self._idle[next(iter(self._idle))]
        if not self._tickets:
            # Nobody waited for what was overdrawn: the next busy period starts even.
            self._idle.clear()


def _used(ticket: Ticket, sequence: Sequence) -> int:
    """What a sequence did cost: prompt tokens that were not cached, and its output. Nothing if it never started."""
    if not ticket.started:
        return 0
    num_computed = max(0, ticket.num_to_compute - sequence.num_cached_tokens)
    return num_computed + OUTPUT_WEIGHT * (sequence.num_known - ticket.num_known)
