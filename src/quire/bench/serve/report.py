"""The tables of a serving benchmark, in the form its users know."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from quire.bench.serve.comparison import TOLERANCE, Comparison
from quire.bench.serve.result import ServeResult
from quire.bench.times import METRICS

TITLES = {
    "ttft": "Time to first token",
    "tpot": "Time per output token, first excluded",
    "itl": "Inter-token latency",
    "e2el": "End-to-end latency",
}
BUSY_CLIENT = 0.7
"""Above this share of a core the generator itself delays what it measures."""


def print_result(result: ServeResult, console: Console) -> None:
    figures = result.to_dict()
    table = Table("Serving benchmark", "", show_header=True)
    table.columns[1].justify = "right"
    for label, value in _overview(result, figures):
        table.add_row(label, value)
    for metric in (name for name in METRICS if name in result.metrics):
        if f"mean_{metric}_ms" not in figures:
            continue
        table.add_section()
        table.add_row(f"[bold]{TITLES[metric]}[/bold]", "")
        for key, label in _statistics(metric, result.percentiles):
            table.add_row(label, f"{figures[key]:,.2f}")
    console.print(table)
    for message, count in sorted(result.errors().items(), key=lambda pair: -pair[1])[:5]:
        console.print(f"{count} failed: {message}", markup=False, style="red")
    if figures["client_cpu_share"] > BUSY_CLIENT:
        console.print(
            f"The load generator took {figures['client_cpu_share']:.0%} of a core: latencies include its own delay.",
            style="yellow",
        )


def _overview(result: ServeResult, figures: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [
        ("Successful requests", f"{figures['completed']:,}"),
        ("Failed requests", f"{figures['failed']:,}"),
        ("Benchmark duration (s)", f"{figures['duration']:,.2f}"),
        ("Total input tokens", f"{figures['total_input_tokens']:,}"),
        ("Total generated tokens", f"{figures['total_output_tokens']:,}"),
        ("Request throughput (req/s)", f"{figures['request_throughput']:,.2f}"),
        ("Output token throughput (tok/s)", f"{figures['output_throughput']:,.2f}"),
        ("Total token throughput (tok/s)", f"{figures['total_token_throughput']:,.2f}"),
        ("Load generator, share of a core", f"{figures['client_cpu_share']:.1%}"),
    ]
    if result.max_concurrency is not None:
        rows.insert(2, ("Maximum request concurrency", str(result.max_concurrency)))
    if result.traffic.request_rate != math.inf and not result.of_trace:
        rows.insert(2, ("Request rate configured (req/s)", f"{result.traffic.request_rate:g}"))
    if figures["request_goodput"] is not None:
        rows.append(("Request goodput (req/s)", f"{figures['request_goodput']:,.2f}"))
    return rows


def _statistics(metric: str, percentiles: Sequence[float]) -> list[tuple[str, str]]:
    """Key and label of each figure of a metric."""
    name = metric.upper()
    return [
        (f"mean_{metric}_ms", f"Mean {name} (ms)"),
        (f"median_{metric}_ms", f"Median {name} (ms)"),
        *((f"p{percent:g}_{metric}_ms", f"P{percent:g} {name} (ms)") for percent in percentiles if percent != 50),
    ]


def print_sweep(results: Sequence[ServeResult], console: Console) -> None:
    """One row a rate, in 80 columns without a figure cut."""
    columns = (
        "req/s asked",
        "req/s",
        "output tok/s",
        "TTFT p50",
        "TTFT p99",
        "TPOT p50",
        "E2EL p50",
        "good req/s",
        "failed",
    )
    table = Table(*columns, title="Rate sweep (latencies in ms)", pad_edge=False)
    for column in table.columns:
        column.justify, column.overflow = "right", "fold"
    for result in results:
        figures = result.run.to_dict(percentiles=(50, 99))
        goodput = result.goodput()
        table.add_row(
            f"{result.traffic.request_rate:g}",
            f"{figures['request_throughput']:,.2f}",
            _three_digits(figures["output_throughput"]),
            *(
                _three_digits(figures[key]) if key in figures else "-"
                for key in ("p50_ttft_ms", "p99_ttft_ms", "p50_tpot_ms", "p50_e2el_ms")
            ),
            "-" if goodput is None else f"{goodput:,.2f}",
            str(figures["failed"]),
        )
    console.print(table)


def _three_digits(value: float) -> str:
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def print_comparison(comparisons: Sequence[Comparison], console: Console) -> None:
    table = Table("Against the server's /metrics", "client", "server", "difference")
    for column in table.columns[1:]:
        column.justify = "right"
    for one in comparisons:
        server = "missing" if one.server is None else f"{one.server:,.2f}"
        style = None if one.agrees else "red"
        table.add_row(one.name, f"{one.client:,.2f}", server, f"{one.difference:.2%}", style=style)
    console.print(table)
    agree = all(one.agrees for one in comparisons)
    console.print(f"{'All agree' if agree else 'They do not agree'} within {TOLERANCE:.0%}.")
