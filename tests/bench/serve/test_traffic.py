"""Arrivals have the distribution that was asked for."""

from __future__ import annotations

import itertools
import math
import statistics

import pytest

from quire.bench.serve.traffic import Traffic
from quire.errors import InvalidRequestError

NUM = 20_000


def gaps(traffic: Traffic) -> list[float]:
    times = traffic.arrivals(NUM, 0)
    return [later - earlier for earlier, later in itertools.pairwise(times)]


def test_without_a_rate_all_come_at_once() -> None:
    assert Traffic().arrivals(5, 0) == [0.0] * 5


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_are_gamma_distributed(burstiness: float) -> None:
    found = gaps(Traffic(10.0, burstiness))
    mean, deviation = statistics.fmean(found), statistics.pstdev(found)
    assert mean == pytest.approx(0.1, rel=0.05)
    assert deviation / mean == pytest.approx(1 / math.sqrt(burstiness), rel=0.05)


def test_infinite_burstiness_is_even_gaps() -> None:
    assert Traffic(10.0, math.inf).arrivals(4, 0) == pytest.approx([0.0, 0.1, 0.2, 0.3])
    ramp = Traffic(1.0, math.inf, "linear", 2.5)
    assert ramp.arrivals(4, 0) == pytest.approx(list(itertools.accumulate([0, 1 / 1, 1 / 1.375, 1 / 1.75])))


def test_burstiness_one_is_a_poisson_process() -> None:
    """Exponential gaps: shares below a time are 1 - exp(-rate * time); counts a second have variance = mean."""
    traffic = Traffic(10.0)
    found = gaps(traffic)
    for time in (0.02, 0.1, 0.3):
        assert sum(gap < time for gap in found) / len(found) == pytest.approx(1 - math.exp(-10 * time), abs=0.01)
    times = traffic.arrivals(NUM, 0)
    counts = [0] * (int(times[-1]) + 1)
    for time in times:
        counts[int(time)] += 1
    assert statistics.pvariance(counts[:-1]) == pytest.approx(statistics.fmean(counts[:-1]), rel=0.1)


@pytest.mark.parametrize(("ramp_up", "middle"), [("linear", 50.5), ("exponential", 10.0)])
def test_ramps(ramp_up: str, middle: float) -> None:
    traffic = Traffic(1.0, ramp_up=ramp_up, end_rate=100.0)  # type: ignore[arg-type]
    assert traffic.rate_at(0) == 1.0
    assert traffic.rate_at(0.5) == pytest.approx(middle)
    assert traffic.rate_at(1) == pytest.approx(100.0)
    found = gaps(traffic)
    around_middle = found[NUM // 2 - 500 : NUM // 2 + 500]
    assert statistics.fmean(around_middle) == pytest.approx(1 / middle, rel=0.15)
    assert statistics.fmean(found[-200:]) == pytest.approx(0.01, rel=0.3)


def test_arrivals_start_at_zero_ascend_and_follow_the_seed() -> None:
    times = Traffic(3.0, 0.5).arrivals(100, 7)
    assert times[0] == 0.0
    assert times == sorted(times)
    assert times == Traffic(3.0, 0.5).arrivals(100, 7)
    assert times != Traffic(3.0, 0.5).arrivals(100, 8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"request_rate": 0.0}, "request_rate must be above 0"),
        ({"request_rate": -1.0}, "request_rate must be above 0"),
        ({"request_rate": math.nan}, "request_rate must be above 0"),
        ({"burstiness": 0.0}, "burstiness must be above 0"),
        ({"request_rate": 1.0, "ramp_up": "linear"}, "A ramp needs"),
        ({"request_rate": 1.0, "end_rate": 2.0}, "A ramp needs"),
        ({"ramp_up": "linear", "end_rate": 2.0}, "must be finite"),
        ({"request_rate": 1.0, "ramp_up": "linear", "end_rate": math.inf}, "must be finite"),
        ({"request_rate": 1.0, "ramp_up": "linear", "end_rate": 0.0}, "ramp_up_end_rps must be above 0"),
    ],
)
def test_impossible_traffic(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        Traffic(**arguments)  # type: ignore[arg-type]
