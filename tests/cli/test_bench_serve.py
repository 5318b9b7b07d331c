"""`quire bench serve` from flags to files, against a server that behaves and one that does not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import RunQuire
from tests.fake_server import FakeServer

from quire.cli.main import main


@pytest.fixture
def server(tiny_llama: Path) -> Iterator[FakeServer]:
    with FakeServer(str(tiny_llama)) as server:
        yield server


Bench = Callable[..., "tuple[int, dict[str, Any]]"]


@pytest.fixture
def bench(server: FakeServer, tmp_path: Path) -> Bench:
    """Exit code and result; requests of 8 tokens and answers of 5, unless told otherwise."""

    def run(*flags: str) -> tuple[int, dict[str, Any]]:
        output = tmp_path / "result.json"
        lengths = ["--input-len", "8", "--output-len", "5", "--num-prompts", "10"]
        code = main(["bench", "serve", "--url", server.url, "--output", str(output), "-q", *lengths, *flags])
        return code, json.loads(output.read_text()) if output.exists() else {}

    return run


KEYS = {
    *("duration", "completed", "failed", "total_input_tokens", "total_output_tokens", "request_throughput"),
    *("request_goodput", "output_throughput", "total_token_throughput"),
    *(
        f"{figure}_{metric}_ms"
        for figure in ("mean", "median", "std", "p99")
        for metric in ("ttft", "tpot", "itl", "e2el")
    ),
}


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_a_run(server: FakeServer, bench: Bench, endpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, result = bench("--endpoint", endpoint, "--goodput", "ttft:60000", "--save-detailed")
    assert code == 0
    assert result.keys() >= KEYS
    assert (result["completed"], result["failed"]) == (10, 0)
    assert (result["total_output_tokens"], result["total_output_events"]) == (50, 50)
    assert result["request_goodput"] == pytest.approx(result["request_throughput"])
    assert len(result["requests"]) == 10
    assert result["workload"]["dataset"] == "random"
    first, body = server.bodies[0], server.bodies[-1]
    assert first["max_tokens"] == 4, "the short one that comes before"
    assert (body["max_tokens"], body["temperature"], body["ignore_eos"]) == (5, 0, True)
    if endpoint == "completions":
        assert result["total_input_tokens"] == 80
        assert (len(first["prompt"]), len(body["prompt"])) == (1, 8)
    shown = capsys.readouterr().out
    for words in ("Successful requests", "Output token throughput", "Mean TTFT (ms)", "P99 ITL (ms)", "goodput"):
        assert words in shown


def test_shapes_of_traffic_and_limits(server: FakeServer, bench: Bench) -> None:
    flags = ["--ramp-up-strategy", "exponential", "--ramp-up-start-rps", "50", "--ramp-up-end-rps", "500"]
    flags += ["--metric-percentiles", "0,100", "--extra-body", '{"temperature": 0.5, "top_k": 3}']
    code, result = bench(*flags, "--max-concurrency", "2", "--burstiness", "2", "--no-ignore-eos")
    assert code == 0
    assert result["p0_ttft_ms"] <= result["p100_ttft_ms"]
    assert "requests" not in result, "only with --save-detailed"
    assert (server.bodies[-1]["temperature"], server.bodies[-1]["top_k"]) == (0.5, 3)
    assert (result["request_rate"], result["ramp_up_end_rps"], result["max_concurrency"]) == (50, 500, 2)
    assert "ignore_eos" not in server.bodies[-1]


def test_even_gaps_are_a_result_that_any_json_reader_takes(bench: Bench) -> None:
    code, result = bench("--request-rate", "500", "--burstiness", "inf")
    assert (code, result["request_rate"], result["burstiness"]) == (0, 500, "inf")


def test_never_more_in_flight_than_asked(server: FakeServer, bench: Bench) -> None:
    server.gap_s = 0.002
    _, result = bench("--max-concurrency", "3", "--save-detailed")
    spans = [(one["start"], one["start"] + one["e2el"]) for one in result["requests"]]
    assert max(sum(start <= at < end for start, end in spans) for at, _ in spans) == 3


def test_a_sweep_and_its_picture(server: FakeServer, bench: Bench, tmp_path: Path) -> None:
    plot = tmp_path / "sweep.png"
    code, result = bench("--sweep", "100,200,inf", "--plot", str(plot))
    assert code == 0
    assert [run["request_rate"] for run in result["sweep"]] == [100, 200, "inf"]
    assert [run["completed"] for run in result["sweep"]] == [10, 10, 10]
    assert plot.read_bytes().startswith(b"\x89PNG")
    prompts = {tuple(body["prompt"]) for body in server.bodies if len(body["prompt"]) == 8}
    assert len(prompts) == 30, "no run's prompts are in the cache of the one before"


def test_a_sweep_of_one_rate_is_a_sweep(bench: Bench) -> None:
    _, result = bench("--sweep", "500")
    assert [run["request_rate"] for run in result["sweep"]] == [500]


def test_a_trace_and_its_picture(bench: Bench, tmp_path: Path) -> None:
    trace, plot = tmp_path / "trace.csv", tmp_path / "trace.png"
    trace.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        + "".join(f"2023-11-16 18:15:0{i},{100 * i},9\n" for i in range(1, 8))
    )
    flags = [
        "--dataset-name",
        "timed-trace",
        "--dataset-path",
        str(trace),
        "--time-scale",
        "0.01",
        "--token-scale",
        "0.5",
    ]
    code, result = bench(*flags, "--max-prompt-tokens", "300", "--plot", str(plot), "--save-detailed")
    assert code == 0
    assert result["completed"] == 7
    assert [one["num_input_tokens"] for one in result["requests"]] == [50, 100, 150, 200, 250, 300, 300]
    assert result["num_cut"] == 1
    assert result["workload"]["num_prompts"] == 7, "all that it holds"
    assert result["request_rate"] is result["burstiness"] is None
    assert result["requests"][-1]["start"] >= 0.06
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("endpoint", "max_model_len"), [("completions", 10), ("chat", 74)])
def test_what_does_not_fit_the_servers_context_is_cut(
    server: FakeServer, bench: Bench, endpoint: str, max_model_len: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """A chat's template may put 64 tokens around the prompt."""
    server.max_model_len = max_model_len
    _, result = bench("--endpoint", endpoint)
    assert result["num_cut"] == 10
    assert "10 of 10 requests were cut to fit." in capsys.readouterr().out
    if endpoint == "completions":
        assert result["total_input_tokens"] == 50


def test_failures_are_counted_and_told(server: FakeServer, bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    server.plan = ["ok", "hang", "cut", "refuse", "garbage", "error_event", "unfinished", "busy"]
    code, result = bench("--timeout", "5", "--max-concurrency", "1")
    assert code == 0
    assert (result["completed"], result["failed"]) == (3, 7)
    assert result["total_output_tokens"] == 15
    assert len(result["errors"]) == 7
    assert "1 failed: " in capsys.readouterr().out


def test_when_everything_fails_the_exit_code_says_so(
    server: FakeServer, bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    server.plan = ["ok", *["refuse"] * 10]
    code, result = bench()
    assert (code, result["completed"], result["failed"]) == (1, 0, 10)
    assert "Every request failed" in capsys.readouterr().err


def test_a_refusal_of_the_first_request_ends_the_run(
    server: FakeServer, bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    server.plan = ["refuse"]
    assert bench() == (1, {})
    assert "so no others were sent: The server answered 400" in capsys.readouterr().err
    assert len(server.bodies) == 1


def test_the_check_against_metrics(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    """The fake counts tokens but no times: what it lacks is a disagreement, not an agreement."""
    code, result = bench("--check-metrics")
    assert code == 1
    found = result["metrics_check"]
    assert found["prompt tokens"] == {"client": 80, "server": 80, "difference": 0}
    assert found["output tokens"] == {"client": 50, "server": 50, "difference": 0}
    assert found["mean TTFT (ms)"]["server"] is None
    assert "They do not agree within 5%" in capsys.readouterr().out


TRACE = ["--dataset-name", "timed-trace"]
RAMP = ["--ramp-up-strategy", "linear", "--ramp-up-start-rps", "1", "--ramp-up-end-rps", "2"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--request-rate", "0"], "request_rate must be above 0"),
        (["--goodput", "speed:1"], "An objective is one of"),
        (["--percentile-metrics", "ttft,x"], "--percentile-metrics takes"),
        (["--metric-percentiles", "101"], "numbers from 0 to 100"),
        ([*TRACE, "--sweep", "1"], "has its own times; leave out --sweep."),
        ([*TRACE, "--request-rate", "4"], "has its own times; leave out --request-rate."),
        (
            [*TRACE, "--burstiness", "1", *RAMP],
            "leave out --burstiness, --ramp-up-strategy, --ramp-up-start-rps, --ramp",
        ),
        (["--sweep", "1", "--request-rate", "1"], "--sweep sets the rate; leave out --request-rate."),
        (["--sweep", "1", "--ramp-up-end-rps", "1"], "--sweep sets the rate; leave out --ramp-up-end-rps."),
        (["--request-rate", "inf", *RAMP], "A ramp sets the rate; leave out --request-rate."),
        (["--ramp-up-start-rps", "1"], "no ramp without --ramp-up-strategy; leave out --ramp-up-start-rps."),
        (RAMP[:4], "A ramp needs"),
        (["--ramp-up-strategy", "linear"], "--ramp-up-start-rps"),
        (["--model", "other"], "not other"),
        (["--tokenizer", "no/such-model/at/all"], "--tokenizer"),
        (["--plot", "x.doc"], r".png, .svg or .pdf"),
    ],
)
def test_wrong_flags(bench: Bench, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(*flags) == (1, {})
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [
        ("--sweep", "4,abc", "must be request rates such as 1,2,4, got 4,abc"),
        ("--extra-body", "{bad", "must be a JSON object, got {bad"),
        ("--extra-body", "[]", "must be a JSON object, got []"),
    ],
)
def test_flags_that_cannot_be_read(flag: str, value: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["bench", "serve", flag, value])
    assert f"argument {flag}: {message}" in capsys.readouterr().err


def test_the_generator_measures_itself(quire: RunQuire, tmp_path: Path) -> None:
    done = quire("bench", "serve", "--measure-client", "--output", tmp_path / "client.json")
    assert done.returncode == 0, done.stderr
    assert "capacity" in done.stdout
    result = json.loads((tmp_path / "client.json").read_text())
    assert result["capacity_tokens_per_s"] > result["paced_tokens_per_s"] > 0
    assert 0 < result["median_latency_ms"] <= result["p99_latency_ms"]
