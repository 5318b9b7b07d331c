"""From timed runs to figures: the arithmetic of the shared keys, medians over repeats, JSON, table and picture."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quire.bench.plot import check_can_plot, write_plot
from quire.bench.report import Report, print_table, write_json
from quire.bench.statistics import percentile, spread, summarize_ms
from quire.bench.times import Measurement, RequestTimes
from quire.errors import InvalidRequestError


def measurement(duration: float) -> Measurement:
    fast = RequestTimes(num_input_tokens=10, num_output_tokens=5, ttft=0.1, e2el=0.5)
    slow = RequestTimes(num_input_tokens=30, num_output_tokens=1, ttft=0.3, e2el=0.3)
    broken = RequestTimes(num_input_tokens=7, num_output_tokens=0, ttft=9.0, e2el=9.0, failed=True)
    return Measurement(duration, [fast, slow, broken])


@pytest.fixture
def report() -> Report:
    measurements = [measurement(duration) for duration in (2.0, 1.0, 4.0)]
    return Report("throughput", "tiny", {"seed": 0}, {"dtype": "float32"}, {"cpu": "test"}, measurements)


def test_the_shared_keys() -> None:
    result = measurement(2.0).to_dict()
    assert (result["completed"], result["failed"]) == (2, 1)
    assert (result["total_input_tokens"], result["total_output_tokens"]) == (40, 6)
    assert result["request_throughput"] == 1.0
    assert result["output_throughput"] == 3.0
    assert result["total_token_throughput"] == 23.0
    assert result["mean_ttft_ms"] == pytest.approx(200), "failed requests have no times"
    assert result["mean_tpot_ms"] == pytest.approx(100), "one token has no time per further token"
    assert result["median_e2el_ms"] == pytest.approx(400)
    assert "mean_itl_ms" not in result, "nothing was streamed"


def test_figures_are_medians_over_the_repeats(report: Report) -> None:
    result = report.to_dict()
    assert result["output_throughput"] == 3.0
    assert result["output_throughput_spread"] == pytest.approx((6.0 - 1.5) / 3.0)
    assert [run["duration"] for run in result["repeats"]] == [2.0, 1.0, 4.0]


def test_json_round_trip(report: Report, tmp_path: Path) -> None:
    write_json(report.to_dict(), tmp_path / "r.json")
    assert json.loads((tmp_path / "r.json").read_text()) == report.to_dict()


def test_the_table_has_median_least_and_most(report: Report, capsys: pytest.CaptureFixture[str]) -> None:
    print_table(report)
    row = next(line for line in capsys.readouterr().out.splitlines() if "output tok/s" in line)
    assert [cell.strip() for cell in row.strip("│").split("│")] == ["output tok/s", "3.0", "1.5", "6.0"]


@pytest.mark.parametrize("streamed", [True, False])
def test_a_picture_is_drawn(report: Report, tmp_path: Path, streamed: bool) -> None:
    if streamed:
        for run in report.measurements:
            run.requests[0].itl = [0.01, 0.02, 0.05]
    path = tmp_path / "r.png"
    write_plot(report, path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_plot_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match=r"\.png, \.svg or \.pdf"):
        check_can_plot(tmp_path / "r.doc")


def test_percentiles_and_spread() -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], 50) == 2.5
    assert percentile([5.0], 99) == 5.0
    assert percentile([1.0, 2.0], 100) == 2.0
    assert summarize_ms("x", []) == {}
    assert summarize_ms("x", [0.001, 0.003])["std_x_ms"] == pytest.approx(1.0)
    assert spread([2.0, 4.0, 3.0]).relative == pytest.approx(2 / 3)
