"""Pictures of a run: for each figure the engines by class, with the class's roofline above (or, for times, below) them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.peers.cases import CASES, Case, Figure
from benchmarks.peers.results import CLASSES, Measured, Results

COLORS = {
    "quire": "#1f5fa8",
    "vLLM": "#e0a030",
    "OpenVINO": "#7b5ea7",
    "llama.cpp": "#c4564a",
    "onnxruntime-genai": "#8a8a8a",
    "transformers": "#4f9d69",
}
SPREAD_OF_LOG = 8.0
"""From this factor between the largest and the least bar on, the axis is logarithmic."""


def write_plots(results: Results, folder: Path) -> list[Path]:
    """One PNG a case that has figures."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for case in plotted(results):
        paths.append(folder / f"peers_{case.letter}.png")
        _plot_case(results, case, paths[-1])
    return paths


def plotted(results: Results) -> list[Case]:
    return [case for case in CASES.values() if results.figures(case)]


def _measured(results: Results, case: Case, figure: Figure) -> dict[str, Measured]:
    """Of each engine that has it: by class, in the order they were measured in."""
    engines = [engine for bits in CLASSES for engine in results.engines(bits)]
    found = {engine: results.measured(case.letter, engine, figure.key) for engine in engines}
    return {engine: measured for engine, measured in found.items() if measured is not None}


def _plot_case(results: Results, case: Case, path: Path) -> None:
    from matplotlib.figure import Figure as Canvas

    figures = results.figures(case)
    counts = [len(_measured(results, case, figure)) for figure in figures]
    canvas = Canvas(figsize=(9, 1.1 * len(figures) + 0.3 * sum(counts)), layout="constrained")
    all_axes = canvas.subplots(len(figures), 1, squeeze=False, height_ratios=[count + 2 for count in counts])
    for axes, figure in zip(all_axes[:, 0], figures, strict=True):
        _plot_figure(axes, results, case, figure)
    canvas.suptitle(f"{case.letter}. {case.title}", fontsize=12, fontweight="bold")
    canvas.savefig(path, dpi=130)


def _plot_figure(axes: Any, results: Results, case: Case, figure: Figure) -> None:
    """Bars from top to bottom; the whiskers reach from the least to the most of the rounds."""
    found = _measured(results, case, figure)
    places, medians = range(len(found)), [measured.median for measured in found.values()]
    below = [measured.median - min(measured.values) for measured in found.values()]
    above = [max(measured.values) - measured.median for measured in found.values()]
    colors = [next((color for name, color in COLORS.items() if engine.startswith(name)), "#bbbbbb") for engine in found]
    axes.barh(places, medians, color=colors, height=0.7)
    axes.errorbar(medians, places, xerr=[below, above], fmt="none", ecolor="#222222", elinewidth=1, capsize=2)
    best = [results.best_possible(case.letter, results.bits(engine), figure.key) for engine in found]
    for place, measured, value in zip(places, found.values(), best, strict=True):
        if value is not None:
            axes.plot([value, value], [place - 0.45, place + 0.45], color="#d01c1c", linewidth=2)
        axes.annotate(
            f"{measured.median:,.3g}" if measured.median < 1000 else f"{measured.median:,.0f}",
            (max(measured.values), place),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    axes.set_yticks(places, [f"{engine}  [{results.bits(engine)}-bit]" for engine in found], fontsize=8)
    axes.invert_yaxis()
    scale = set_scale(axes, [*medians, *(value for value in best if value is not None)])
    better = "more is better" if figure.higher_is_better else "less is better"
    marked = "; red: roofline" if any(value is not None for value in best) else ""
    axes.set_title(f"{figure.label} ({better}{scale}{marked})", fontsize=9, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="x", labelsize=8)


def set_scale(axes: Any, values: list[float]) -> str:
    """Returns what is to be said of it: on a logarithmic axis a bar twice as long is no figure twice as large."""
    from matplotlib.ticker import LogLocator, NullLocator

    positive = [value for value in values if value > 0]
    if positive and max(positive) > SPREAD_OF_LOG * min(positive):
        axes.set_xscale("log")
        axes.set_xlim(min(positive) / 2, max(positive) * 2)
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter("{x:,g}")
        return "; logarithmic"
    axes.set_xlim(0, 1.15 * max(values))
    return ""
