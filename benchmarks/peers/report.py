"""The page of results, made from the recorded runs and from nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.cases import CASES, Case, Figure
from benchmarks.peers.goals import Goal, Rival, goals_of, rivals
from benchmarks.peers.plot import write_plots
from benchmarks.peers.quality import GREEDY_PROMPTS, GREEDY_TOKENS, WINDOW
from benchmarks.peers.results import Measured, Results, is_quire, read_results, significant
from benchmarks.peers.roofline import fraction

CLASSES = (("16", "16-bit"), ("8", "8-bit"), ("4", "4-bit"), ("32", "32-bit"))


def write_report(results_paths: Sequence[Path], page: Path) -> None:
    """`page` and the plots of the first results in the folder `img` beside it."""
    first, *others = read_results(results_paths)
    plots = write_plots(first, page.parent / "img")
    lines = render(first, others, [plot.relative_to(page.parent) for plot in plots], results_paths)
    page.write_text("\n".join(lines) + "\n")
    print(f"written: {page}, {', '.join(map(str, plots))}")


def print_ratios(results_paths: Sequence[Path]) -> None:
    for results in read_results(results_paths):
        print("\n".join([*ratio_section(results), *quality_section(results)]), flush=True)


def render(first: Results, others: Sequence[Results], plots: Sequence[Path], read: Sequence[Path]) -> Iterable[str]:
    """`read` are the files of the results, as a reader would name them."""
    yield from introduction(first, read)
    for plot in plots:
        yield from (f"![{plot.stem}]({plot.as_posix()})", "")
    yield from tables(first, "##")
    for results in others:
        yield from (f"## {title(results)}", "", f"{provenance(results)}. Repeat it: `{command(results)}`.", "")
        yield from tables(results, "###")
        yield from versions(results)
        yield ""
    yield from limits_section(first)


def tables(results: Results, heading: str) -> Iterable[str]:
    for case in CASES.values():
        if any(run["case"] == case.letter for run in results.content["runs"]):
            yield from case_section(results, case, heading)
    yield from ratio_section(results, heading)
    yield from quality_section(results, heading)
    yield from missing_section(results, heading)


def title(results: Results) -> str:
    held_to = results.instruction_set
    return results.model if held_to is None else f"{results.model}, held to {held_to.upper()}"


def provenance(results: Results) -> str:
    machine, settings = results.content["machine"], results.content["settings"]
    changed = ", with uncommitted changes" if machine["uncommitted_changes"] else ""
    return (
        f"{title(results)} on {machine['cores']} cores of {machine['cpu']} ({machine['cpu features']}),"
        f" {machine['memory']}; {machine['time'][:10]}, commit {machine['commit'][:10]}{changed}. Medians of"
        f" {settings['rounds']} rounds after a warm-up, the engines in turn within each round"
    )


def command(results: Results) -> str:
    return _command(results.content["settings"])


def _command(settings: Mapping[str, Any]) -> str:
    return str(settings.get("command", "python -m benchmarks.peers"))


def later_runs(results: Results) -> Iterable[str]:
    """Which cases are not of the first run, and of which."""
    for run in results.content.get("later", []):
        machine = run["machine"]
        cases = f"Case{'s' if len(run['cases']) > 1 else ''} {', '.join(run['cases'])}"
        made = f"{machine['time'][:10]}, commit {machine['commit'][:10]}, on {machine['cpu']}"
        yield from (f"{cases}: {made}, by `{_command(run['settings'])}`.", "")


def introduction(results: Results, read: Sequence[Path]) -> Iterable[str]:
    yield from ("# quire and its peers", "")
    yield (
        f"{provenance(results)}; in parentheses the least and the most. Percentages are the share of the roofline of the"
        " engine's precision class (formulas: `benchmarks/peers/roofline.py`), for which a step reads every weight once; quire's"
        " greedy steps of a few streams read less of the projection to the vocabulary (docs/adr/0011-greedy-tokens-by-a-sketch.md)."
    )
    yield from (
        "",
        f"Repeat it: `{command(results)}`; this page from its JSON:"
        f" `python -m benchmarks.peers report {' '.join(map(str, read))}`.",
        "",
    )
    yield from later_runs(results)


def case_section(results: Results, case: Case, heading: str) -> Iterable[str]:
    figures = [figure for figure in case.figures if _anyone_has(results, case, figure)]
    yield from (f"{heading} {case.letter}. {case.title}", "")
    yield "| class | engine | perplexity | " + " | ".join(figure.label for figure in figures) + " |"
    yield "|---|---|---|" + "---|" * len(figures)
    for bits, label in CLASSES:
        for engine in results.engines(bits):
            cells = [cell(results, case, engine, figure) for figure in figures]
            if any(text != "–" for text in cells):
                cells = [label, named(results, engine), perplexity(results, engine), *cells]
                yield "| " + " | ".join(cells) + " |"
    yield ""


def _anyone_has(results: Results, case: Case, figure: Figure) -> bool:
    return any(run["case"] == case.letter and figure.key in run["figures"] for run in results.content["runs"])


def named(results: Results, engine: str) -> str:
    """quire stands out, but not where its numbers are wrong."""
    if results.has_lost(engine):
        return f"{engine} (lost)"
    return f"**{engine}**" if is_quire(engine) else engine


def perplexity(results: Results, engine: str) -> str:
    found = results.content["quality"].get(engine, {}).get("perplexity")
    if found is None:
        return "–"
    return f"{found:.3f} ({change(results, engine)})"


def change(results: Results, engine: str) -> str:
    found = results.perplexity_change(engine)
    return "–" if found is None else f"{found:+.2%}"


def cell(results: Results, case: Case, engine: str, figure: Figure) -> str:
    measured = results.measured(case.letter, engine, figure.key)
    if measured is None:
        return "–"
    best = results.best_possible(case.letter, results.bits(engine), figure.key)
    if best is None:
        return str(measured)
    return f"{measured} · {fraction(measured.median, best, figure.higher_is_better):.0%}"


def ratio_section(results: Results, heading: str = "##") -> Iterable[str]:
    """How quire compares with the best peer of its class, and with what is asked: above 1 is better, for times too."""
    rows, met = [], set()
    for case in CASES.values():
        for figure in case.figures:
            for bits, label in CLASSES:
                for engine in filter(is_quire, results.engines(bits)):
                    ours = results.measured(case.letter, engine, figure.key)
                    if ours is not None:
                        compared = rivals(results, case, bits, figure)
                        met |= {(case.letter, figure.key, bits, rival.times) for rival in compared}
                        start = f"| {case.letter} {figure.label} | {label} | {engine} | {change(results, engine)}"
                        start += f" | {significant(ours.median)}"
                        rows += [f"{start} | {against(results, engine, ours, rival, figure)} |" for rival in compared]
    if rows:
        yield from (f"{heading} Against the best peer of the class", "")
        yield "| figure | class | quire | perplexity | | against | | better by | asked | reached |"
        yield from ("|---|---|---|---|---|---|---|---|---|---|", *rows, "")
        missed = [goal for goal in goals_of(results) if (goal.case, goal.figure, goal.bits, goal.times) not in met]
        if missed:
            yield from (f"Asked and not measured here: {', '.join(map(goal_name, missed))}.", "")


def against(results: Results, engine: str, ours: Measured, rival: Rival, figure: Figure) -> str:
    ratio = times_better(ours.median, rival.value, figure)
    asked, reached = "–", "–"
    if rival.times is not None:
        asked, reached = f"{rival.times:.2f}×", "yes" if ratio >= rival.times else "**no**"
    if results.has_lost(engine):
        reached = "**lost**"
    name = f"{rival.name} (lost)" if results.has_lost(rival.name) else rival.name
    return f"{name} | {significant(rival.value)} | {ratio:.2f}× | {asked} | {reached}"


def times_better(ours: float, theirs: float, figure: Figure) -> float:
    """0 is the rate of a server that kept the limits at none."""
    if ours and theirs:
        return fraction(ours, theirs, figure.higher_is_better)
    return math.inf if ours else 0.0


def goal_name(goal: Goal) -> str:
    label = next(figure.label for figure in CASES[goal.case].figures if figure.key == goal.figure)
    return f"{goal.case} {label} ({goal.bits}-bit, {goal.times:.2f}× {goal.rival})"


def quality_section(results: Results, heading: str = "##") -> Iterable[str]:
    found = results.content["quality"]
    if not found:
        return
    settings = results.content["settings"]
    yield from (f"{heading} Is it right?", "")
    yield (
        f"Perplexity of the first {settings['perplexity_tokens']:,} tokens of botchan.txt in windows of {WINDOW}; an engine that is"
        f" further from float32's than its limit has lost. Leading greedy tokens, of {GREEDY_TOKENS} after each of"
        f" {GREEDY_PROMPTS} prompts, that are those of {settings['reference']} on the same weights."
    )
    yield from ("", "| engine | perplexity | against float32 | limit | equal greedy tokens |", "|---|---|---|---|---|")
    for engine, quality in found.items():
        value = "–" if quality["perplexity"] is None else f"{quality['perplexity']:.3f}"
        limit = results.content["engines"].get(engine, {}).get("max_perplexity_change")
        cells = [named(results, engine), value, change(results, engine), "–" if limit is None else f"{limit:.1%}"]
        yield f"| {' | '.join(cells)} | {', '.join(map(str, quality['num_equal']))} |"
    yield ""


def missing_section(results: Results, heading: str) -> Iterable[str]:
    absent = [f"- {engine} could not be made ready: {why}" for engine, why in results.content["absent"].items()]
    skipped = [f"- {each['case']}, {each['engine']}: {each['reason']}" for each in results.content["skipped"]]
    if absent or skipped:
        yield from (f"{heading} Left out", "", *absent, *skipped, "")


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
    yield from versions(results)


def versions(results: Results) -> Iterable[str]:
    for engine, about in results.content["engines"].items():
        found = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
        options = ", ".join(f"{name} {value}" for name, value in about.get("running_options", {}).items())
        parts = [found, about["installed"], f"{options} where its start is not measured" if options else ""]
        yield f"- {engine}: {'; '.join(part for part in parts if part)}"
