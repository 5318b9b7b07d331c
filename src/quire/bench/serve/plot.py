"""Pictures of a run of load, and of a sweep over rates."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from quire.bench.plot import BLUE, GREY, ORANGE, save_figure
from quire.bench.serve.result import ServeResult

NUM_BINS = 60
CURVES = (
    ("ttft", "first token (TTFT)"),
    ("tpot", "an output token (TPOT)"),
    ("itl", "gap (ITL)"),
    ("e2el", "whole (E2EL)"),
)


def write_plot(results: Sequence[ServeResult], title: str, path: Path, *, sweep: bool) -> None:
    """One picture for one run, or for a sweep."""
    if sweep:
        _write_sweep_plot(results, title, path)
    else:
        _write_result_plot(results[0], title, path)


def _write_result_plot(result: ServeResult, title: str, path: Path) -> None:
    """Left: the latencies' cumulative shares. Right: tokens and running requests over time."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.5), layout="constrained")
    latencies, timeline = figure.subplots(1, 2)
    _draw_latencies(latencies, result)
    _draw_timeline(timeline, result)
    figure.suptitle(title)
    save_figure(figure, path)


def _draw_latencies(axes: Any, result: ServeResult) -> None:
    """`axes` is a matplotlib Axes. Logarithmic, or ITL and E2EL would not fit in one picture."""
    drawn = False
    for metric, label in CURVES:
        ms = [1000 * seconds for seconds in result.run.seconds(metric) if seconds > 0]
        if ms:
            axes.ecdf(ms, label=label)
            drawn = True
    axes.set_xlabel("milliseconds")
    axes.set_ylabel("share")
    axes.set_title(f"latencies of {len(result.run.completed)} requests")
    axes.grid(color=GREY, alpha=0.3)
    if drawn:
        axes.set_xscale("log")
        axes.legend(loc="upper left")


def _draw_timeline(axes: Any, result: ServeResult) -> None:
    width = result.run.duration / NUM_BINS
    tokens, running = timeline(result, NUM_BINS)
    middles = [(index + 0.5) * width for index in range(NUM_BINS)]
    axes.bar(middles, [count / width for count in tokens], width=width, color=BLUE)
    axes.set_xlabel("seconds")
    axes.set_ylabel("output tokens / s", color=BLUE)
    axes.set_title(f"{result.run.output_throughput:,.1f} output tokens / s on average")
    lanes = axes.twinx()
    lanes.plot(middles, running, color=ORANGE)
    lanes.set_ylabel("requests in flight", color=ORANGE)
    lanes.set_ylim(bottom=0)


def timeline(result: ServeResult, num_bins: int) -> tuple[list[float], list[float]]:
    """Output tokens in each part of the run's duration, and the mean number of requests in flight during it."""
    width = result.run.duration / num_bins
    tokens, running = [0.0] * num_bins, [0.0] * num_bins
    for request in result.run.requests:
        if request.arrivals and not request.failed:
            share = request.num_output_tokens / len(request.arrivals)
            for at in request.arrivals:
                tokens[min(int(at / width), num_bins - 1)] += share
        end = request.start + request.e2el
        for index in range(max(0, int(request.start / width)), min(int(end / width), num_bins - 1) + 1):
            overlap = min(end, (index + 1) * width) - max(request.start, index * width)
            running[index] += max(0.0, overlap) / width
    return tokens, running


def _write_sweep_plot(results: Sequence[ServeResult], title: str, path: Path) -> None:
    """Throughput, and median and p99 latencies, over the request rate that was asked for."""
    from matplotlib.figure import Figure

    rates = [result.traffic.request_rate for result in results]
    figures = [result.run.to_dict(percentiles=(50, 99)) for result in results]
    finite = [rate for rate in rates if rate != float("inf")]
    places = [rate if rate != float("inf") else 2 * max(finite, default=0.5) for rate in rates]
    figure = Figure(figsize=(14, 4.5), layout="constrained")
    speed, ttft, tpot = figure.subplots(1, 3)
    speed.plot(places, [run["output_throughput"] for run in figures], "o-", color=BLUE, label="output tokens / s")
    speed.set_ylabel("output tokens / s")
    for axes, metric in ((ttft, "ttft"), (tpot, "tpot")):
        for percent, color in ((50, BLUE), (99, ORANGE)):
            key = f"p{percent}_{metric}_ms"
            points = [(place, run[key]) for place, run in zip(places, figures, strict=True) if key in run]
            axes.plot([x for x, _ in points], [y for _, y in points], "o-", color=color, label=f"p{percent}")
        axes.set_ylabel(f"{metric.upper()} (ms)")
        axes.legend()
    for axes in (speed, ttft, tpot):
        axes.set_xticks(places, [f"{rate:g}" for rate in rates])
        axes.set_xlabel("requests / s asked for")
        axes.set_ylim(bottom=0)
        axes.grid(color=GREY, alpha=0.3)
    figure.suptitle(title)
    save_figure(figure, path)
