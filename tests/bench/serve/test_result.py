"""Figures of hand-made timelines: every definition once, by hand."""

from __future__ import annotations

import io
import json
import math
import re
from typing import Any

import pytest
from rich.console import Console

from quire.bench.serve.comparison import compare
from quire.bench.serve.plot import timeline
from quire.bench.serve.report import print_result, print_sweep
from quire.bench.serve.result import LoadRun, ServedRequest, ServeResult, parse_objectives, served_request
from quire.bench.serve.traffic import Traffic
from quire.client.load_client import StreamedAnswer
from quire.client.server_metrics import Change, parse_metrics
from quire.client.stream_events import Usage
from quire.errors import InvalidRequestError


def answer(start: float, arrivals: list[float], usage: Usage | None = None, error: str | None = None) -> StreamedAnswer:
    return StreamedAnswer(start, arrivals, end=(arrivals or [start])[-1] + 0.25, usage=usage, error=error)


def test_one_stream() -> None:
    """Sent at 100 (10 after the run's start); five tokens in four events: 100.5, 101, 101, 102."""
    found = served_request(answer(100, [100.5, 101, 101, 102], Usage(7, 5)), 6, 90)
    assert (found.num_input_tokens, found.num_output_tokens) == (7, 5), "the server's counts"
    assert found.ttft == 0.5
    assert found.e2el == 2.0, "to the last token, not to the end of the connection"
    assert found.itl == [0.5, 0.0, 1.0]
    assert found.tpot == pytest.approx((2.0 - 0.5) / 4)
    assert (found.start, found.arrivals) == (10, [10.5, 11, 11, 12])
    assert parse_objectives(["ttft:500", "e2el:2000"]).met_by(found), "just so"


def test_without_usage_an_event_is_a_token() -> None:
    found = served_request(answer(0, [1, 2, 3]), 6, 0)
    assert (found.num_input_tokens, found.num_output_tokens) == (6, 3)


def test_an_answer_without_text_ends_when_its_stream_does() -> None:
    found = served_request(answer(0, [], Usage(3, 1)), 3, 0)
    assert (found.ttft, found.e2el, found.tpot, found.itl) == (0.25, 0.25, None, [])


RUN = [
    served_request(answer(0, [0.1, 0.2, 0.3], Usage(10, 3)), 10, 0),
    served_request(answer(1, [1.4, 1.6, 2.4], Usage(20, 3)), 20, 0),
    served_request(answer(2, [2.2], Usage(30, 1)), 30, 0),
    served_request(answer(3, [3.1, 3.2], None, error="cut"), 40, 0),
]


def result(requests: list[ServedRequest] = RUN, **changes: Any) -> ServeResult:
    return ServeResult(LoadRun(4.0, requests, 1.0, [0.002, 0.001]), Traffic(), None, **changes)


def test_a_sweep_is_shown_whole_in_80_columns() -> None:
    slow = [served_request(answer(0, [12.3, 36.4, 60.5], Usage(10, 3)), 10, 0)]
    console = Console(file=io.StringIO(), width=80)
    print_sweep([result(), result(slow, objectives=parse_objectives(["ttft:500"]))], console)
    shown = console.file.getvalue()
    assert "…" not in shown
    assert {"12,300", "24,100", "60,500", "good", "failed"} <= set(re.findall(r"[\w,]+", shown))


def test_what_is_shown_of_a_run() -> None:
    def shown(run: ServeResult) -> str:
        console = Console(file=io.StringIO(), width=80)
        print_result(run, console)
        return console.file.getvalue()

    failed = [served_request(answer(3, [3.1], error=error), 1, 0) for error in ("gone", "cut")]
    text = shown(result([*RUN, *failed], percentiles=(50, 99)))
    assert text.index("2 failed: cut") < text.index("1 failed: gone")
    assert "P99 TTFT" in text
    assert "P50 TTFT" not in text, "the median is there"
    assert "Request rate" not in text
    assert "own delay" not in text
    busy = ServeResult(LoadRun(4.0, RUN, 3.0, []), Traffic(2.5), 7)
    for words in (r"Maximum request concurrency +│ +7 ", r"Request rate configured .* 2\.5 ", "took 75% of a core"):
        assert re.search(words, shown(busy))
    busy.of_trace = True
    assert "Request rate" not in shown(busy)


def test_the_keys_and_figures_of_a_run() -> None:
    found = result(percentiles=(50, 99.9)).to_dict()
    assert (found["duration"], found["completed"], found["failed"]) == (4.0, 3, 1)
    assert (found["total_input_tokens"], found["total_output_tokens"]) == (60, 7), "those of failed ones do not count"
    assert found["request_throughput"] == 0.75
    assert found["output_throughput"] == 1.75
    assert found["total_token_throughput"] == 67 / 4
    assert found["request_goodput"] is None
    assert found["total_output_events"] == 7
    assert found["mean_ttft_ms"] == pytest.approx((100 + 400 + 200) / 3)
    assert found["median_ttft_ms"] == found["p50_ttft_ms"] == pytest.approx(200)
    assert found["median_tpot_ms"] == pytest.approx((100 + 500) / 2), "one token has none"
    assert found["mean_itl_ms"] == pytest.approx((100 + 100 + 200 + 800) / 4)
    assert found["std_itl_ms"] == pytest.approx(math.sqrt((200**2 + 200**2 + 100**2 + 500**2) / 4))
    assert found["p99.9_e2el_ms"] == pytest.approx(1400 - 0.002 * 1100)
    assert found["errors"] == {"cut": 1}
    assert (found["client_cpu_share"], found["client_max_lag_ms"]) == (0.25, 2.0)
    assert found["request_rate"] == "inf"
    json.loads(json.dumps(found, allow_nan=False))


def test_chosen_metrics_only() -> None:
    keys = result(metrics=("ttft",)).to_dict().keys()
    assert "mean_ttft_ms" in keys
    assert not any("tpot" in key or "itl" in key or "e2el" in key for key in keys)


def test_details_have_a_record_a_request() -> None:
    records = result().to_dict(details=True)["requests"]
    assert [record["error"] for record in records] == [None, None, None, "cut"]
    assert records[1]["itl"] == pytest.approx([0.2, 0.8])
    json.dumps(records)


@pytest.mark.parametrize(
    ("objectives", "good"),
    [
        (["ttft:1000"], 3),
        (["ttft:200.001"], 2),
        (["tpot:200"], 2),
        (["ttft:150", "tpot:200"], 1),
        (["e2el:1000"], 2),
        (["ttft:1"], 0),
    ],
)
def test_goodput(objectives: list[str], good: int) -> None:
    assert result(objectives=parse_objectives(objectives)).goodput() == good / 4


@pytest.mark.parametrize(
    "word", ["ttft", "ttft:", "ttft:x", "ttft:0", "ttft:-1", "ttft:nan", "ttft:inf", "itl:5", "speed:3"]
)
def test_wrong_objectives(word: str) -> None:
    with pytest.raises(InvalidRequestError, match="like ttft:200"):
        parse_objectives([word])


def test_nothing_completed() -> None:
    found = result([RUN[3]], objectives=parse_objectives(["ttft:5"])).to_dict()
    assert (found["completed"], found["request_goodput"], found["output_throughput"]) == (0, 0, 0)
    assert "mean_ttft_ms" not in found


def test_the_timeline_holds_every_token_and_the_running_requests() -> None:
    tokens, running = timeline(result(), 4)
    assert tokens == [3, 2, 2, 0]
    assert running == pytest.approx([0.3, 1.0, 0.4 + 0.2, 0.2])
    last = served_request(answer(3, [4.0], Usage(1, 1)), 1, 0)
    assert timeline(result([last]), 4) == ([0, 0, 0, 1], [0, 0, 0, 1])


METRICS = """\
quire:num_requests_running 0
# TYPE quire:prompt_tokens counter
quire:prompt_tokens_total{engine="0"} %d
quire:prompt_tokens_total{engine="1"} 5
# TYPE quire:generation_tokens counter
quire:generation_tokens_total %d
# TYPE quire:time_to_first_token_seconds histogram
quire:time_to_first_token_seconds_bucket{le="+Inf"} 9
quire:time_to_first_token_seconds_count %d
quire:time_to_first_token_seconds_sum %f
"""


def test_the_servers_account_of_a_run() -> None:
    before, after = parse_metrics(METRICS % (100, 10, 4, 1.0), 0), parse_metrics(METRICS % (160, 18, 7, 1.7), 4)
    found = {one.name: one for one in compare(Change(before, after), RUN)}
    assert (found["prompt tokens"].client, found["prompt tokens"].server) == (60, 60)
    assert found["prompt tokens"].agrees
    assert (found["output tokens"].client, found["output tokens"].server) == (7, 8)
    assert found["output tokens"].difference == pytest.approx(1 / 8)
    assert not found["output tokens"].agrees
    assert found["mean TTFT (ms)"].server == pytest.approx(700 / 3)
    assert found["mean TTFT (ms)"].agrees
    assert found["requests"].server is None, "this server does not count them"
    assert not found["requests"].agrees
    nothing = compare(Change(before, before), [])
    assert nothing[0].agrees, "both are 0"
