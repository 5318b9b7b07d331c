"""Engine after engine, round after round: what disturbs the machine for a while disturbs all of them. Each round begins with
another engine. A turn begins with a run that does not count, of other prompts: a machine may take from a process that waits what
it then takes long to get back (docs/lab.md), and an engine in use does not wait for minutes between two requests."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.peers.cases import Case, Figures
from benchmarks.peers.contender import Contender, make_room, one_line
from benchmarks.peers.record import Record

Measure = Callable[[Contender, int, float], Figures]
"""A contender, the round's number, the seconds it has left -> figures. 0 is the warm-up, and -n the run before that of round n."""
WARM_UP = 0


@dataclass(slots=True)
class Turns:
    """What an engine spent on a case, and on its last turn, in seconds."""

    spent: float = 0.0
    last: float = 0.0


@dataclass
class Interleaved:
    """One case for all engines. An engine that fails, or would outlast the case's limit, is left out from then on."""

    case: Case
    measure: Measure
    record: Record
    first_round: int = WARM_UP
    turns: dict[str, Turns] = field(default_factory=dict)

    def run(self, contenders: Sequence[Contender], num_rounds: int) -> None:
        active = [contender for contender in contenders if self.case.letter in contender.variant.cases]
        for number in range(self.first_round, num_rounds + 1):
            turns = active
            active = [turn for turn in turns if self._turn(turn, number, idle_longest(turn, turns, contenders))]
            active = [*active[1:], *active[:1]]

    def _turn(self, contender: Contender, number: int, others: Sequence[Contender]) -> bool:
        """Whether the engine goes on."""
        turns = self.turns.setdefault(contender.name, Turns())
        left = self.case.limit_s - turns.spent
        if turns.last > left:
            self._skip(contender, f"round {number} left out: the limit of {self.case.limit_s:.0f} s")
            return False
        try:
            if self.case.run is not None:
                make_room(contender, others)
                contender.ensure_started()
            start = time.perf_counter()
            if self.case.run is not None and number != WARM_UP:
                self.measure(contender, -number, left)
            figures = self.measure(contender, number, left - (time.perf_counter() - start))
        except Exception as error:
            self._skip(contender, one_line(error))
            return False
        finally:
            contender.freeze()
        turns.last = time.perf_counter() - start
        turns.spent += turns.last
        shown = ", ".join(f"{self._label(key)} {value:,.4g}" for key, value in figures.items())
        print(
            f"{self.case.letter} {f'round {number}' if number else 'warm-up'}: {contender.name:<20} {shown}", flush=True
        )
        if number != WARM_UP:
            self.record.add_run(self.case.letter, contender.name, number, figures)
            self.record.write()
        return True

    def _label(self, key: str) -> str:
        return next((figure.label for figure in self.case.figures if figure.key == key), key)

    def _skip(self, contender: Contender, reason: str) -> None:
        print(f"{self.case.letter}: {contender.name} is left out: {reason}", flush=True)
        self.record.skip(self.case.letter, contender.name, reason)


def idle_longest(contender: Contender, turns: Sequence[Contender], contenders: Sequence[Contender]) -> list[Contender]:
    """The others, first those that are needed last: without a turn in this case, then who has just had one."""
    place = turns.index(contender)
    without = [other for other in contenders if other not in turns]
    return [*without, *reversed(turns[:place]), *reversed(turns[place + 1 :])]
