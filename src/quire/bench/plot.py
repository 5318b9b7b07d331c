"""The picture of a benchmark. matplotlib comes with the extra `bench` and is imported when the picture is drawn."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from quire.bench.report import Report
from quire.bench.statistics import spread
from quire.errors import InvalidRequestError, QuireError, in_words

BLUE, ORANGE, GREY = "#3b6ea5", "#d0743c", "#888888"


def check_can_plot(path: Path) -> None:
    """Before the work, not after it: raises QuireError if no picture could be written."""
    if importlib.util.find_spec("matplotlib") is None:
        raise QuireError("A plot needs matplotlib; install it with: pip install 'quire[bench]'.")
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise InvalidRequestError(f"A plot is a .png, .svg or .pdf file, got {path}.", field="plot", value=str(path))


def write_plot(report: Report, path: Path) -> None:
    """Left: speed of each repeat. Right: how long the requests of the median repeat took."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    speed, times = figure.subplots(1, 2)
    _draw_speed(speed, report)
    _draw_times(times, report)
    figure.suptitle(f"quire bench {report.kind}: {Path(report.model).name}, {report.config['dtype']}")
    save_figure(figure, path)


def save_figure(figure: Any, path: Path) -> None:
    """`figure` is a matplotlib Figure. Raises InvalidRequestError if the file cannot be written."""
    try:
        figure.savefig(path, dpi=120)
    except OSError as error:
        raise InvalidRequestError(f"The plot cannot be written to {path}: {in_words(error)}.", field="plot") from error


def _draw_speed(axes: Any, report: Report) -> None:
    """`axes` is a matplotlib Axes."""
    speeds = [measurement.output_throughput for measurement in report.measurements]
    found = spread(speeds)
    numbers = range(1, len(speeds) + 1)
    axes.bar(numbers, speeds, color=BLUE, width=0.6)
    axes.axhline(found.median, color=ORANGE, linestyle="--")
    axes.set_ylim(0, 1.15 * found.high)
    axes.set_xticks(list(numbers))
    axes.set_xlabel("repeat")
    axes.set_ylabel("output tokens / s")
    axes.set_title(f"median {found.median:,.1f}")


def _draw_times(axes: Any, report: Report) -> None:
    """Cumulative shares: of the gaps in a stream where there are any, otherwise of first and last tokens."""
    ordered = sorted(report.measurements, key=lambda measurement: measurement.output_throughput)
    requests = ordered[len(ordered) // 2].requests
    gaps = [gap for request in requests for gap in request.itl]
    if gaps:
        curves = [("between tokens (ITL)", gaps, BLUE)]
    else:
        curves = [
            ("first token (TTFT)", [request.ttft for request in requests], BLUE),
            ("last token (E2EL)", [request.e2el for request in requests], ORANGE),
        ]
    for label, seconds, color in curves:
        axes.ecdf([1000 * value for value in seconds], label=label, color=color)
    axes.set_xlim(0, 1050 * max(max(seconds) for _, seconds, _ in curves))
    axes.set_xlabel("milliseconds")
    axes.set_ylabel("share of tokens" if gaps else "share of requests")
    axes.set_title(f"{len(requests)} requests of the median repeat")
    axes.grid(color=GREY, alpha=0.3)
    axes.legend(loc="lower right")
