"""Summaries of repeated measurements."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


def percentile(values: Sequence[float], percent: float) -> float:
    """Linear between the two nearest ranks; values need not be sorted."""
    return float(np.percentile(values, percent))


def summarize_ms(name: str, seconds: Sequence[float], percentiles: Sequence[float] = (90, 99)) -> dict[str, float]:
    """mean, median, std and percentiles of times as `mean_<name>_ms` ... `p99_<name>_ms`; empty if there are none."""
    if not seconds:
        return {}
    ms = sorted(1000 * value for value in seconds)
    return {
        f"mean_{name}_ms": statistics.fmean(ms),
        f"median_{name}_ms": statistics.median(ms),
        f"std_{name}_ms": statistics.pstdev(ms),
        **{f"p{percent:g}_{name}_ms": percentile(ms, percent) for percent in percentiles},
    }


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of some repeats and how far the extremes lie apart, as a share of it."""

    median: float
    low: float
    high: float

    @property
    def relative(self) -> float:
        return (self.high - self.low) / self.median

    def __str__(self) -> str:
        return f"{self.median:,.1f} ({self.low:,.1f} to {self.high:,.1f})"


def spread(values: Sequence[float]) -> Spread:
    return Spread(statistics.median(values), min(values), max(values))
