"""The page of results, made from the recorded runs and from nothing else."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.cases import CASES, Case, Figure
from benchmarks.peers.plot import write_plots
from benchmarks.peers.roofline import fraction

CLASSES = (("16", "16-bit"), ("8", "8-bit"), ("4", "4-bit"), ("32", "32-bit"))
DIGITS = 3


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
    """The JSON of a run, and questions to it."""

    content: Mapping[str, Any]

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

    def best_peer(self, case: Case, bits: str, figure: Figure) -> tuple[str, float] | None:
        """Of the engines that are not quire, in the same class."""
        found = [
            (name, measured.median)
            for name in self.engines(bits)
            if not is_quire(name) and (measured := self.measured(case.letter, name, figure.key)) is not None
        ]
        if not found:
            return None
        return (max if figure.higher_is_better else min)(found, key=lambda pair: pair[1])


def is_quire(engine: str) -> bool:
    return engine.split()[0] == "quire"


def read_results(paths: Sequence[Path]) -> Results:
    """Several runs, of different cases, make one page: each case's figures and limits are those of its own run."""
    first, *others = [json.loads(path.read_text()) for path in paths]
    for other in others:
        first["runs"] += other["runs"]
        first["skipped"] += other["skipped"]
        for name in ("engines", "quality", "absent"):
            first[name] = other[name] | first[name]
        first["settings"]["cases"] += other["settings"]["cases"]
        for bits, cases in other["rooflines"].items():
            first["rooflines"].setdefault(bits, {}).update(
                {letter: figures for letter, figures in cases.items() if letter in other["settings"]["cases"]}
            )
    return Results(first)


def write_report(results_paths: Sequence[Path], page: Path) -> None:
    """`page` and the plots in the folder `img` beside it."""
    results = read_results(results_paths)
    plots = write_plots(results, page.parent / "img")
    page.write_text("\n".join(render(results, [plot.relative_to(page.parent) for plot in plots])) + "\n")
    print(f"written: {page}, {', '.join(map(str, plots))}")


def render(results: Results, plots: Sequence[Path]) -> Iterable[str]:
    yield from introduction(results)
    for plot in plots:
        yield from (f"![{plot.stem}]({plot.as_posix()})", "")
    for case in CASES.values():
        if any(run["case"] == case.letter for run in results.content["runs"]):
            yield from case_section(results, case)
    yield from ratio_section(results)
    yield from quality_section(results)
    yield from missing_section(results)
    yield from limits_section(results)


def introduction(results: Results) -> Iterable[str]:
    machine, settings = results.content["machine"], results.content["settings"]
    changed = ", with uncommitted changes" if machine["uncommitted_changes"] else ""
    yield from ("# quire and its peers", "")
    yield (
        f"{settings['model']} on {machine['cores']} cores of {machine['cpu']} ({machine['cpu features']}),"
        f" {machine['memory']}; {machine['time'][:10]}, commit {machine['commit'][:10]}{changed}. Medians of"
        f" {settings['rounds']} rounds after a warm-up, the engines in turn within each round; in parentheses the least and"
        " the most. Percentages are the share of the roofline of the engine's precision class"
        " (formulas: `benchmarks/peers/roofline.py`)."
    )
    yield from (
        "",
        "Repeat it: `python -m benchmarks.peers`; this page from its JSON: `python -m benchmarks.peers report`.",
        "",
    )


def case_section(results: Results, case: Case) -> Iterable[str]:
    figures = [figure for figure in case.figures if _anyone_has(results, case, figure)]
    yield from (f"## {case.letter}. {case.title}", "")
    yield "| class | engine | " + " | ".join(figure.label for figure in figures) + " |"
    yield "|---|---|" + "---|" * len(figures)
    for bits, label in CLASSES:
        for engine in results.engines(bits):
            cells = [cell(results, case, engine, figure) for figure in figures]
            if any(text != "–" for text in cells):
                yield f"| {label} | {_emphasized(engine)} | " + " | ".join(cells) + " |"
    yield ""


def _anyone_has(results: Results, case: Case, figure: Figure) -> bool:
    return any(run["case"] == case.letter and figure.key in run["figures"] for run in results.content["runs"])


def _emphasized(engine: str) -> str:
    return f"**{engine}**" if is_quire(engine) else engine


def cell(results: Results, case: Case, engine: str, figure: Figure) -> str:
    measured = results.measured(case.letter, engine, figure.key)
    if measured is None:
        return "–"
    best = results.best_possible(case.letter, results.bits(engine), figure.key)
    if best is None:
        return str(measured)
    return f"{measured} · {fraction(measured.median, best, figure.higher_is_better):.0%}"


def ratio_section(results: Results) -> Iterable[str]:
    """How quire compares with the best peer of its class: above 1 is better, for times as for rates."""
    rows = []
    for case in CASES.values():
        for figure in case.figures:
            for bits, label in CLASSES:
                peer = results.best_peer(case, bits, figure)
                for engine in filter(is_quire, results.engines(bits)):
                    ours = results.measured(case.letter, engine, figure.key)
                    if peer is not None and ours is not None:
                        ratio = fraction(ours.median, peer[1], figure.higher_is_better) if ours.median else 0.0
                        rows.append(
                            f"| {case.letter} {figure.label} | {label} | {engine} | {significant(ours.median)}"
                            f" | {peer[0]} | {significant(peer[1])} | {ratio:.2f}× |"
                        )
    if rows:
        yield from ("## Against the best peer of the class", "")
        yield "| figure | class | quire | | best peer | | better by |"
        yield from ("|---|---|---|---|---|---|---|", *rows, "")


def quality_section(results: Results) -> Iterable[str]:
    if not results.content["quality"]:
        return
    yield from ("## Is it right?", "")
    yield (
        "Perplexity of the first 2,048 tokens of botchan.txt in windows of 512; leading greedy tokens, of 40 after each of"
        " four prompts, that are those of transformers in float32 on the same weights."
    )
    yield from ("", "| engine | perplexity | equal greedy tokens |", "|---|---|---|")
    for engine, quality in results.content["quality"].items():
        perplexity = "–" if quality["perplexity"] is None else f"{quality['perplexity']:.3f}"
        yield f"| {_emphasized(engine)} | {perplexity} | {', '.join(map(str, quality['num_equal']))} |"
    yield ""


def missing_section(results: Results) -> Iterable[str]:
    absent = [f"- {engine} could not be made ready: {why}" for engine, why in results.content["absent"].items()]
    skipped = [f"- {each['case']}, {each['engine']}: {each['reason']}" for each in results.content["skipped"]]
    if absent or skipped:
        yield from ("## Left out", "", *absent, *skipped, "")


def limits_section(results: Results) -> Iterable[str]:
    limits, machine = results.content["limits"], results.content["machine"]
    yield from ("## The machine and what ran on it", "")
    rates = ", ".join(
        f"{float(rate) / 1e9:.1f} GB/s over the {bits}-bit weights" for bits, rate in limits["bandwidth"].items()
    )
    products = ", ".join(f"{name} {rate / 1e12:.2f} TOP/s" for name, rate in limits["matmul"].items())
    yield from (
        f"- Memory read by {machine['cores']} threads: {rates}.",
        f"- Products of 2,048³ through oneDNN: {products}.",
    )
    for engine, about in results.content["engines"].items():
        versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
        yield f"- {engine}: {versions}{'; ' if about['installed'] else ''}{about['installed']}"
