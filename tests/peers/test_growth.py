"""Which points of a growing step's time fall off."""

from __future__ import annotations

import pytest
from benchmarks.growth import FALLS_OFF, Point, above_neighbours, print_sweep

BATCHES = (1, 2, 4, 8, 16, 32, 64)


def points(times: list[float]) -> list[Point]:
    return [Point(128, batch, time, time / 2) for batch, time in zip(BATCHES, times, strict=False)]


def test_a_fixed_cost_and_one_by_row_never_fall_off() -> None:
    for fixed, by_row in ((10.0, 0.0), (10.0, 1.0), (0.0, 1.0)):
        found = above_neighbours(points([fixed + by_row * batch for batch in BATCHES]), "batch")
        assert max(found) <= 1 + 1e-9


@pytest.mark.parametrize("index", range(7))
def test_a_point_that_takes_three_times_as_long_is_named_wherever_it_stands(
    index: int, capsys: pytest.CaptureFixture[str]
) -> None:
    times = [20.0 + batch for batch in BATCHES]
    times[index] *= 3
    assert [name.split(" (")[0] for name in print_sweep("stored", "batch", points(times))] == [
        f"stored at batch {BATCHES[index]}"
    ]
    assert capsys.readouterr().out.count("FALLS OFF") == 1


def test_neighbours_are_joined_by_a_line_of_logarithms() -> None:
    """Between 10 at 1 and 40 at 4 a line of logarithms has 20 at 2."""
    assert above_neighbours(points([10.0, 20.0 * FALLS_OFF, 40.0]), "batch")[1] == pytest.approx(FALLS_OFF)


def test_one_point_has_no_neighbours() -> None:
    assert above_neighbours(points([10.0]), "batch") == [1.0]
