"""The result of a benchmark: JSON for machines, a table for the terminal."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from quire.bench.statistics import Spread, spread
from quire.bench.times import Measurement
from quire.errors import InvalidRequestError, in_words

ROWS = (
    ("requests/s", "request_throughput"),
    ("output tok/s", "output_throughput"),
    ("total tok/s", "total_token_throughput"),
    ("TTFT, median (ms)", "median_ttft_ms"),
    ("TTFT, p99 (ms)", "p99_ttft_ms"),
    ("TPOT, median (ms)", "median_tpot_ms"),
    ("ITL, p99 (ms)", "p99_itl_ms"),
    ("E2EL, median (ms)", "median_e2el_ms"),
)


@dataclass(frozen=True, slots=True)
class Report:
    """`measurements` are the timed repeats; the warm-up is not among them."""

    kind: str
    model: str
    workload: dict[str, Any]
    config: dict[str, Any]
    environment: dict[str, Any]
    measurements: list[Measurement]

    def spreads(self) -> dict[str, Spread]:
        """Each key over the repeats."""
        runs = [measurement.to_dict() for measurement in self.measurements]
        return {key: spread([run[key] for run in runs]) for key in runs[0]}

    def to_dict(self) -> dict[str, Any]:
        """Top-level figures are medians over the repeats; `repeats` has each run."""
        spreads = self.spreads()
        return {
            "benchmark": self.kind,
            "model": self.model,
            **{key: value.median for key, value in spreads.items()},
            "output_throughput_spread": spreads["output_throughput"].relative,
            "workload": self.workload,
            "config": self.config,
            "environment": self.environment,
            "repeats": [measurement.to_dict() for measurement in self.measurements],
        }


def write_json(result: dict[str, Any], path: Path) -> None:
    """Raises InvalidRequestError if the file cannot be written."""
    try:
        path.write_text(json.dumps(result, indent=2) + "\n")
    except OSError as error:
        raise InvalidRequestError(
            f"The result cannot be written to {path}: {in_words(error)}.", field="output"
        ) from error


def spread_table(heading: str, rows: Iterable[tuple[str, Spread]], digits: int) -> Table:
    """Median, least and most of each."""
    table = Table(heading, "median", "least", "most")
    for column in table.columns[1:]:
        column.justify = "right"
    for label, one in rows:
        table.add_row(label, *(f"{value:,.{digits}f}" for value in (one.median, one.low, one.high)))
    return table


def print_table(report: Report) -> None:
    spreads = report.spreads()
    first = report.measurements[0].to_dict()
    heading = (
        f"{report.kind}: {report.model}, {first['completed']} requests,"
        f" {first['total_input_tokens']:,} + {first['total_output_tokens']:,} tokens"
    )
    console = Console()
    console.print(heading, soft_wrap=True)
    console.print(spread_table("", [(label, spreads[key]) for label, key in ROWS if key in spreads], digits=1))
    console.print(f"{len(report.measurements)} repeats after one warm-up; {first['failed']} requests failed.")
