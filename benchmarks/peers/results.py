"""The JSON of one or several runs, and questions to it."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.cases import Case, Figure
from benchmarks.peers.engines.peer import SMOLLM2

DIGITS = 3
CLASSES = ("16", "8", "4", "32")
"""Bits of a weight, in the order in which pages have them."""


@dataclass(frozen=True, slots=True)
class Measured:
    """All rounds of one figure of one engine."""

    values: Sequence[float]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def __str__(self) -> str:
        """The median, and how far the rounds lie apart."""
        shown = significant(self.median)
        if len(self.values) == 1:
            return shown
        return f"{shown} ({significant(min(self.values))}–{significant(max(self.values))})"


def significant(value: float) -> str:
    """Three digits, and no more after the point than that takes."""
    magnitude = len(str(int(abs(value)))) if abs(value) >= 1 else 0
    return f"{value:,.{max(0, DIGITS - magnitude)}f}"


@dataclass(frozen=True, slots=True)
class Results:
    """Engines that may be compared: of one model, and all held to the same instruction set or to none."""

    content: Mapping[str, Any]
    model: str = SMOLLM2
    instruction_set: str | None = None

    @property
    def about(self) -> Sequence[Mapping[str, Any]]:
        """Its runs, as `read_results` says."""
        return self.content["about"]  # type: ignore[no-any-return]

    def figures(self, case: Case) -> list[Figure]:
        """Those that any engine has."""
        found = {key for run in self.content["runs"] if run["case"] == case.letter for key in run["figures"]}
        return [figure for figure in case.figures if figure.key in found]

    def measured(self, case: str, engine: str, figure: str) -> Measured | None:
        values = [
            run["figures"][figure]
            for run in self.content["runs"]
            if run["case"] == case and run["engine"] == engine and figure in run["figures"]
        ]
        return Measured(values) if values else None

    def engines(self, bits: str) -> list[str]:
        return [name for name, engine in self.content["engines"].items() if str(engine["bits"]) == bits]

    def bits(self, engine: str) -> str:
        return str(self.content["engines"][engine]["bits"])

    def best_possible(self, case: str, bits: str, figure: str) -> float | None:
        value = self.content["rooflines"].get(bits, {}).get(case, {}).get(figure)
        return None if value is None else float(value)

    def perplexity_change(self, engine: str) -> float | None:
        """Against float32 of the same weights, as a share of it; None where that was not measured."""
        change = self.content["quality"].get(engine, {}).get("change")
        return None if change is None else float(change)

    def has_lost(self, engine: str) -> bool:
        """Whether its perplexity is too far from float32's: then no speed of it counts."""
        change = self.perplexity_change(engine)
        if change is None or engine not in self.content["engines"]:
            return False
        return abs(change) > float(self.content["engines"][engine]["max_perplexity_change"])

    def peers(self, case: Case, bits: str, figure: Figure) -> list[tuple[str, float]]:
        """The engines that are not quire, in the same class, and their medians; the best first."""
        found = [
            (name, measured.median)
            for name in self.engines(bits)
            if not is_quire(name) and (measured := self.measured(case.letter, name, figure.key)) is not None
        ]
        return sorted(found, key=lambda pair: pair[1], reverse=figure.higher_is_better)


def is_quire(engine: str) -> bool:
    return engine.split()[0] == "quire"


def read_results(paths: Sequence[Path]) -> list[Results]:
    """Several runs make one page: each case's figures and limits are those of its own run. The first are those of SmolLM2
    on whatever the CPU has, if there are any. `about` of a result has its runs in this order: which `cases` each measured,
    its `machine`, `settings` and `limits`, and the `path` of its file."""
    found: dict[tuple[str, str | None], dict[str, Any]] = {}
    for path in paths:
        for key, part in _parts(json.loads(path.read_text())):
            part["about"] = [_about(part, path)]
            if key in found:
                _merge(found[key], part)
            else:
                found[key] = part
    order = sorted(found, key=lambda key: key != (SMOLLM2, None))
    return [Results(found[key], *key) for key in order]


def _parts(content: dict[str, Any]) -> Iterable[tuple[tuple[str, str | None], dict[str, Any]]]:
    """A run's engines, apart by what they were held to. What belongs to none of them, as the reference, goes to all."""
    held_to = {name: about.get("instruction_set") for name, about in content["engines"].items()}
    for instruction_set in dict.fromkeys(held_to.values()):

        def belongs(name: str, instruction_set: str | None = instruction_set) -> bool:
            return held_to.get(name, instruction_set) == instruction_set

        part = {
            **content,
            "settings": dict(content["settings"]),
            "engines": {name: about for name, about in content["engines"].items() if belongs(name)},
            "quality": {name: quality for name, quality in content["quality"].items() if belongs(name)},
            "runs": [run for run in content["runs"] if belongs(run["engine"])],
            "skipped": [each for each in content["skipped"] if belongs(each["engine"])],
            "rooflines": {bits: dict(cases) for bits, cases in content["rooflines"].items()},
        }
        yield (content["settings"]["model"], instruction_set), part


def _about(part: Mapping[str, Any], path: Path) -> dict[str, Any]:
    cases = sorted({run["case"] for run in part["runs"]})
    return {"cases": cases, "path": path, **{name: part[name] for name in ("machine", "settings", "limits")}}


def _worse(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """An engine that lost in one of the runs has lost on their page."""
    return max(one, other, key=lambda quality: abs(quality["change"] or 0.0))


def _merge(first: dict[str, Any], other: Mapping[str, Any]) -> None:
    first["about"] += other["about"]
    first["runs"] += other["runs"]
    first["skipped"] += other["skipped"]
    for name in ("engines", "absent"):
        first[name] = other[name] | first[name]
    for engine, quality in other["quality"].items():
        first["quality"][engine] = _worse(first["quality"].get(engine, quality), quality)
    measured = {(str(other["engines"][run["engine"]]["bits"]), run["case"]) for run in other["runs"]}
    for bits, cases in other["rooflines"].items():
        own = {letter: figures for letter, figures in cases.items() if (bits, letter) in measured}
        first["rooflines"].setdefault(bits, {}).update(own)
