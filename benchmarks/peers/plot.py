"""Pictures of a run: for each figure the engines by class, with the class's roofline above (or, for times, below) them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.peers.cases import CASES, Case, Figure

if TYPE_CHECKING:
    from benchmarks.peers.results import Results

COLORS = {
    "quire": "#1f5fa8",
    "vLLM": "#e0a030",
    "OpenVINO": "#7b5ea7",
    "llama.cpp": "#c4564a",
    "onnxruntime-genai": "#8a8a8a",
    "transformers": "#4f9d69",
}
CLASSES = ("16", "8", "4", "32")
SPREAD_OF_LOG = 8.0
"""From this factor between the largest and the least bar on, the axis is logarithmic."""


def write_plots(results: Results, folder: Path) -> list[Path]:
    """One PNG a case that has figures."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for case in plotted(results):
        paths.append(folder / f"peers_{case.letter}.png")
        _plot_case(results, case, _measured(results, case), paths[-1])
    return paths


def plotted(results: Results) -> list[Case]:
    return [case for case in CASES.values() if _measured(results, case)]


def _measured(results: Results, case: Case) -> list[Figure]:
    return [figure for figure in case.figures if _engines_with(results, case, figure)]


def _engines_with(results: Results, case: Case, figure: Figure) -> list[str]:
    """By class, in the order they were measured in."""
    return [
        engine
        for bits in CLASSES
        for engine in results.engines(bits)
        if results.measured(case.letter, engine, figure.key) is not None
    ]


def _plot_case(results: Results, case: Case, figures: list[Figure], path: Path) -> None:
    from matplotlib.figure import Figure as Canvas

    counts = [len(_engines_with(results, case, figure)) for figure in figures]
    canvas = Canvas(figsize=(9, 1.1 * len(figures) + 0.3 * sum(counts)), layout="constrained")
    all_axes = canvas.subplots(len(figures), 1, squeeze=False, height_ratios=[count + 2 for count in counts])
    for axes, figure in zip(all_axes[:, 0], figures, strict=True):
        _plot_figure(axes, results, case, figure)
    canvas.suptitle(f"{case.letter}. {case.title}", fontsize=12, fontweight="bold")
    canvas.savefig(path, dpi=130)


def _plot_figure(axes: Any, results: Results, case: Case, figure: Figure) -> None:
    """Bars from top to bottom; the whiskers reach from the least to the most of the rounds."""
    rows: list[tuple[str, float, float, float]] = []
    for engine in _engines_with(results, case, figure):
        measured = results.measured(case.letter, engine, figure.key)
        assert measured is not None
        rows.append((engine, measured.median, min(measured.values), max(measured.values)))
    places = range(len(rows))
    medians = [median for _, median, _, _ in rows]
    errors = [[median - low for _, median, low, _ in rows], [high - median for _, median, _, high in rows]]
    colors = [next((color for name, color in COLORS.items() if row[0].startswith(name)), "#bbbbbb") for row in rows]
    axes.barh(places, medians, color=colors, height=0.7)
    axes.errorbar(medians, places, xerr=errors, fmt="none", ecolor="#222222", elinewidth=1, capsize=2)
    best = [results.best_possible(case.letter, results.bits(row[0]), figure.key) for row in rows]
    for place, value in zip(places, best, strict=True):
        if value is not None:
            axes.plot([value, value], [place - 0.45, place + 0.45], color="#d01c1c", linewidth=2)
    for place, row in zip(places, rows, strict=True):
        axes.annotate(
            f"{row[1]:,.3g}" if row[1] < 1000 else f"{row[1]:,.0f}",
            (row[3], place),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    axes.set_yticks(places, [f"{row[0]}  [{results.bits(row[0])}-bit]" for row in rows], fontsize=8)
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
