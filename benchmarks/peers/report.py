"""The page of results, made from the recorded runs and from nothing else but the list of engines there are."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.cases import CASES, Case, Figure
from benchmarks.peers.goals import Goal, Rival, goals_of, rivals
from benchmarks.peers.plot import plotted, write_plots
from benchmarks.peers.quality import GREEDY_PROMPTS, GREEDY_TOKENS, WINDOW
from benchmarks.peers.results import CLASSES, Measured, Results, is_quire, read_results, significant
from benchmarks.peers.roofline import fraction
from benchmarks.peers.run import PEERS
from benchmarks.peers.serving import MAX_P99_MS
from benchmarks.script import ROOT

PAGE = ROOT / "benchmarks" / "RESULTS.md"
TITLE = "quire and its peers"


@dataclass(frozen=True, slots=True)
class Page:
    """A Markdown file made from `results`. `intro` is a file of Markdown that stands below the title."""

    results: Sequence[Path]
    path: Path = PAGE
    title: str = TITLE
    intro: Path | None = None

    def command(self) -> str:
        """What makes it again."""
        words = ["python", "-m", "benchmarks.peers", "report", *map(shown, self.results)]
        words += [] if self.path.resolve() == PAGE else ["--page", shown(self.path)]
        words += [] if self.title == TITLE else ["--title", self.title]
        words += [] if self.intro is None else ["--intro", shown(self.intro)]
        return shlex.join(words)


def shown(path: Path) -> str:
    """From the repository's root, where commands are given, if it lies below that."""
    full = path.resolve()
    return full.relative_to(ROOT).as_posix() if full.is_relative_to(ROOT) else str(path)


def write_report(page: Page) -> None:
    """The page, and plots of the first results in the folder `img` beside it."""
    first, *others = read_results(page.results)
    plots = write_plots(first, page.path.parent / "img")
    page.path.write_text("\n".join(render(page, first, others)) + "\n")
    print(f"written: {page.path}, {', '.join(map(str, plots))}")


def print_ratios(results_paths: Sequence[Path]) -> None:
    for results in read_results(results_paths):
        print("\n".join([*ratio_section(results), *quality_section(results)]), flush=True)


def render(page: Page, first: Results, others: Sequence[Results]) -> Iterable[str]:
    yield from introduction(page, first)
    for case in plotted(first):
        yield from (f"![{case.letter}. {case.title}](img/peers_{case.letter}.png)", "")
    yield from tables(first, "##")
    for results in others:
        yield from (f"## {title(results)}", "", f"{provenance(results)}. Repeat it: `{command(results.about[0])}`.", "")
        yield from tables(results, "###")
        yield from versions(results)
        yield from (*rates(results), "")
    yield from growth_section(page.path.parent)
    yield from ("## The machine and what ran on it", "", *rates(first), *versions(first))


def tables(results: Results, heading: str) -> Iterable[str]:
    for case in plotted(results):
        yield from case_section(results, case, heading)
    yield from ratio_section(results, heading)
    yield from quality_section(results, heading)
    yield from missing_section(results, heading)


def title(results: Results) -> str:
    held_to = results.instruction_set
    return results.model if held_to is None else f"{results.model}, held to {held_to.upper()}"


def provenance(results: Results) -> str:
    first = results.about[0]
    machine, settings = first["machine"], first["settings"]
    begins = "each round begins with the next engine" if settings.get("rotated") else "quire has the first"
    if settings.get("awake"):
        begins += ", and in cases a to d each turn begins with a run that does not count"
    return (
        f"{title(results)} on {machine['cores']} cores of {machine['cpu']} ({machine['cpu features']}),"
        f" {machine['memory']}; {made(machine)}. Figures are medians of {settings['rounds']} rounds after a warm-up. In a round"
        f" every engine has its turn; {begins}"
    )


def made(machine: Mapping[str, Any]) -> str:
    """When, and from which files."""
    found = f"{machine['time'][:10]}, commit {machine['commit'][:10]}"
    changed = machine["uncommitted_changes"]
    if changed is True:
        return f"{found}, with uncommitted changes (perhaps only earlier runs' results)"
    return f"{found}, with uncommitted changes to {', '.join(changed)}" if changed else found


def command(about: Mapping[str, Any]) -> str:
    """As it was given; what is left to a default that may change is written out."""
    settings = about["settings"]
    words = shlex.split(settings["command"])
    num_tokens = settings["perplexity_tokens"]
    words += ["--perplexity-tokens", str(num_tokens)] if num_tokens and "--perplexity-tokens" not in words else []
    return shlex.join([*words, "--output", shown(about["path"])])


def later_runs(results: Results) -> Iterable[str]:
    """Which cases are not of the first run, and of which."""
    for run in results.about[1:]:
        machine, rounds = run["machine"], run["settings"]["rounds"]
        yield f"{cases_of(run)}: {made(machine)}, on {machine['cpu']}, {rounds} rounds, by `{command(run)}`."
        yield ""


def cases_of(run: Mapping[str, Any]) -> str:
    return f"Case{'s' if len(run['cases']) > 1 else ''} {', '.join(run['cases'])}"


def introduction(page: Page, results: Results) -> Iterable[str]:
    yield from (f"# {page.title}", "")
    if page.intro is not None:
        yield from (page.intro.read_text().strip(), "")
    yield (
        f"{provenance(results)}. In parentheses stand the least and the most of the rounds. 128 → 256 means 128 prompt tokens and"
        " 256 output tokens."
    )
    yield ""
    yield (
        "A percentage is the share of the roofline that was reached: of the speed that the machine's memory and oneDNN's products, both"
        " measured just before the run (below), allow the engine's precision class if a step reads every weight once (formulas:"
        " `benchmarks/peers/roofline.py`). It is a reference and no bound, and a share may be above 100 %: quire's greedy steps of a"
        " few streams, for one, do not read all of the projection to the vocabulary (docs/adr/0011-greedy-tokens-by-a-sketch.md)."
    )
    yield from legend(results)
    yield from ("", f"Repeat it: `{command(results.about[0])}`; this page from its JSON: `{page.command()}`.", "")
    yield from later_runs(results)


def legend(results: Results) -> Iterable[str]:
    meanings = {
        "stored": "the weights as the GGUF file has them (`--quantization stored`, the default)",
        "int8": "weights and activations rounded to 8 bits (`--quantization int8`)",
        "kv8": "keys and values in 8 bits too (`--kv-cache-dtype int8`)",
    }
    ours = {word for engine in results.content["engines"] if is_quire(engine) for word in engine.split()}
    known = [f"*{word}*, {meaning}" for word, meaning in meanings.items() if word in ours]
    if known:
        yield from ("", f"Of quire: {'; '.join(known)}.")


def case_section(results: Results, case: Case, heading: str) -> Iterable[str]:
    figures = results.figures(case)
    yield from (f"{heading} {case.letter}. {case.title}", "")
    yield "| class | engine | perplexity | " + " | ".join(figure.label for figure in figures) + " |"
    yield "|---|---|---|" + "---|" * len(figures)
    for bits in CLASSES:
        for engine in results.engines(bits):
            cells = [cell(results, case, engine, figure) for figure in figures]
            if any(text != "–" for text in cells):
                cells = [f"{bits}-bit", named(results, engine), perplexity(results, engine), *cells]
                yield "| " + " | ".join(cells) + " |"
    yield from ("", *notes(results, case))


def notes(results: Results, case: Case) -> Iterable[str]:
    """What a reader must know of a case's figures."""
    if any(is_quire(run["engine"]) and run["case"] == "e" == case.letter for run in results.content["runs"]):
        yield from (
            "Variants of quire other than *stored* read packed weights that an earlier start kept (`--packed-cache`, which is on by itself"
            " where packing takes long).",
            "",
        )
    if "max_rate" in [figure.key for figure in results.figures(case)]:
        ttft, tpot = MAX_P99_MS["ttft_p99_ms"], MAX_P99_MS["tpot_p99_ms"]
        seconds = next(
            (run["settings"].get("rate_seconds") for run in results.about if case.letter in run["cases"]), None
        )
        yield from (
            f"Highest good rate: the highest request rate with p99 TTFT ≤ {ttft:.0f} ms and p99 TPOT ≤ {tpot:.0f} ms. It comes from"
            " one search a server, one server after the other: neither interleaved nor a median."
            + (f" Each rate lasts at least {seconds:.0f} s." if seconds else ""),
            "",
        )


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
            for bits in CLASSES:
                for engine in filter(is_quire, results.engines(bits)):
                    ours = results.measured(case.letter, engine, figure.key)
                    if ours is not None:
                        compared = rivals(results, case, bits, figure)
                        met |= {(case.letter, figure.key, bits, rival.times) for rival in compared}
                        start = f"| {case.letter} {figure.label} | {bits}-bit | {engine} | {change(results, engine)}"
                        start += f" | {significant(ours.median)}"
                        rows += [f"{start} | {against(results, engine, ours, rival, figure)} |" for rival in compared]
    if rows:
        yield from (f"{heading} Against the best peer of the class", "")
        yield (
            "*Better by*: the ratio of the two, the one way for speeds and the other for times and memory, so that quire leads where it is"
            " above 1. *Asked*: the ratio that was aimed at."
        )
        yield ""
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
    num_tokens = max(run["settings"]["perplexity_tokens"] for run in results.about)
    yield from (f"{heading} Is it right?", "")
    yield (
        f"Perplexity of the first {num_tokens:,} tokens of botchan.txt in windows of {WINDOW}; an engine that is"
        f" further from float32's than its limit has lost, however fast it is. The last column: how many of the {GREEDY_TOKENS} greedy"
        f" tokens after each of {GREEDY_PROMPTS} prompts are those of {results.about[0]['settings']['reference']} on the same weights,"
        " up to the first that is not."
    )
    if any(engine.startswith("OpenVINO") for engine in found):
        yield (
            "OpenVINO's speed is measured with its pipelines, which give no logprobs of a prompt. Its perplexity is therefore that of the"
            " compiled model alone, without the pipelines' KV cache of 8 bits."
        )
    yield from ("", "| engine | perplexity | against float32 | limit | equal greedy tokens |", "|---|---|---|---|---|")
    for engine, quality in found.items():
        value = "–" if quality["perplexity"] is None else f"{quality['perplexity']:.3f}"
        limit = results.content["engines"].get(engine, {}).get("max_perplexity_change")
        cells = [named(results, engine), value, change(results, engine), "–" if limit is None else f"{limit:.1%}"]
        yield f"| {' | '.join(cells)} | {', '.join(map(str, quality['num_equal']))} |"
    yield ""


NO_ANSWER = re.compile(r"^RemoteError: No server answers at \S+: timed out;.*")
REMARKS = {"OpenVINO int4": "its perplexity is 29 % above float32's (docs/lab.md)"}
"""Of engines that pages leave out."""


def missing_section(results: Results, heading: str) -> Iterable[str]:
    absent = [f"- {engine} could not be made ready: {why}" for engine, why in results.content["absent"].items()]
    skipped = [
        f"- {each['case']}, {each['engine']}{after_rounds(results, each)}: "
        + NO_ANSWER.sub("its server did not answer in time", each["reason"])
        for each in results.content["skipped"]
    ]
    lines = [*absent, *skipped, *not_run(results)]
    if lines:
        yield from (f"{heading} Left out", "", *lines, "")


def after_rounds(results: Results, skipped: Mapping[str, Any]) -> str:
    place = (skipped["case"], skipped["engine"])
    rounds = [run["round"] for run in results.content["runs"] if (run["case"], run["engine"]) == place]
    return f", after round {max(rounds)}" if rounds else ""


def not_run(results: Results) -> Iterable[str]:
    """The peers of the model that could have run a case of the page and did not; nothing says why."""
    content = results.content
    cases = {run["case"] for run in content["runs"]}
    done = {(each["case"], each["engine"]) for each in (*content["runs"], *content["skipped"])}
    for variant in (variant for peer in PEERS for variant in peer.variants):
        of_page = results.model in variant.models and variant.instruction_set == results.instruction_set
        lacking = [case for case in sorted(cases & set(variant.cases)) if (case, variant.name) not in done]
        if of_page and lacking and variant.name not in content["absent"]:
            remark = f"; {REMARKS[variant.name]}" if variant.name in REMARKS else ""
            yield f"- {variant.name} in {', '.join(lacking)}: not run on this page{remark}"


def growth_section(folder: Path) -> Iterable[str]:
    """What `python -m benchmarks.growth` left beside the page, if anything."""
    plot, figures = folder / "img" / "growth.png", folder / "results" / "growth.json"
    if plot.exists() and figures.exists():
        about = json.loads(figures.read_text())["about"]
        yield from ("## How a step grows with context and batch", "")
        yield (
            f"quire alone, {made(about)}, on {about['cpu']}; figures: `benchmarks/results/growth.json`. Repeat it:"
            " `python -m benchmarks.growth --plot benchmarks/img/growth.png --output benchmarks/results/growth.json`."
        )
        yield from ("", "![growth](img/growth.png)", "")


def rates(results: Results) -> Iterable[str]:
    """Those that each run's shares are of."""
    for run in results.about:
        limits, machine = run["limits"], run["machine"]
        memory = ", ".join(
            f"{float(rate) / 1e9:.1f} GB/s over the {bits}-bit weights" for bits, rate in limits["bandwidth"].items()
        )
        products = ", ".join(f"{name} {rate / 1e12:.2f} TOP/s" for name, rate in limits["matmul"].items())
        yield (
            f"- {cases_of(run)}: memory read by {machine['cores']} threads {memory}; products of 2,048³ through oneDNN {products}."
        )


def versions(results: Results) -> Iterable[str]:
    for engine, about in results.content["engines"].items():
        found = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
        parts = [found, about["installed"], running(about.get("running_options", {}))]
        yield f"- {engine}: {'; '.join(part for part in parts if part)}"


def running(options: Mapping[str, Any]) -> str:
    """How quire is set where its start is not what is measured."""
    if not options:
        return ""
    assert options["preallocate_kv_cache"] is True, options
    return f"KV cache of {options['num_blocks']:,} blocks allocated at start, in all cases but e"
