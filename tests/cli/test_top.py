"""The live view of a server, against a server of metrics pages."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.server.records import make_record, status

from quire.cli.main import main
from quire.cli.top import Watch
from quire.client.address import RemoteError, ServerAddress
from quire.client.server_metrics import Change, parse_metrics
from quire.core.stats import EngineStats
from quire.core.wire import EngineStatus
from quire.server.metrics import Metrics

ROOT = Path(__file__).parent.parent.parent


class MetricsServer:
    """A real metrics page; the figures move by the same amount each time somebody asks."""

    def __init__(self, namespace: str = "quire", api_key: str | None = None, port: int = 0) -> None:
        self.metrics = Metrics("smollm2", namespace, lambda: moved(self.num_asked))
        self.num_asked = 0
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                allowed = api_key is None or self.headers.get("authorization") == f"Bearer {api_key}"
                body = server.page() if allowed else b"no"
                self.send_response(200 if allowed else 401)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: Any) -> None: ...

        self.http = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.port = self.http.server_port
        self.url = f"http://127.0.0.1:{self.port}"
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.02,))
        self.thread.start()

    def page(self) -> bytes:
        self.num_asked += 1
        step(self.metrics)
        return self.metrics.render()

    def close(self) -> None:
        self.http.shutdown()
        self.thread.join()
        self.http.server_close()


def moved(number: int) -> EngineStatus:
    """At the `number`-th look: 100 generated tokens and 1,000 prompt tokens more each time, 3 of 4 of them cached."""
    stats = EngineStats(
        num_running=3, num_waiting=12, num_preempted=1, num_blocks=100, num_held_blocks=43,
        num_prompt_tokens=1000 * number, num_generation_tokens=100 * number, num_preemptions=number,
        num_prefix_query_tokens=1000 * number, num_prefix_hit_tokens=750 * number,
    )  # fmt: skip
    return status(stats)


def step(metrics: Metrics) -> None:
    """A request more."""
    metrics.observe_request(make_record())
    metrics.observe_first_token(0.05)
    metrics.observe_tokens(0.0125)


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[MetricsServer]:
    server = MetricsServer(**getattr(request, "param", {}))
    yield server
    server.close()


def change(seconds: float, namespace: str = "quire") -> Change:
    number = 0
    metrics = Metrics("smollm2", namespace, lambda: moved(number))
    readings = []
    for number in (1, 2):
        step(metrics)
        readings.append(parse_metrics(metrics.render().decode(), now=number * seconds))
    return Change(*readings)


def draw(*changes: Change, width: int = 80) -> str:
    console = Console(width=width, force_terminal=False)
    watch = Watch(ServerAddress("http://127.0.0.1:8000"))
    with console.capture() as capture:
        for one in changes:
            console.print(watch.frame(one))
    return capture.get()


@pytest.mark.parametrize("namespace", ["quire", "vllm"])
def test_a_frame_shows_the_figures(namespace: str) -> None:
    text = " ".join(draw(change(2.0, namespace)).split())
    for part in (
        "http://127.0.0.1:8000 smollm2", "running 3 waiting 12", "preempted 1", "used 43.0%", "prefix hits 75.0%",
        "preemptions 2 (+1)", "prompt 500 tok/s", "generation 50 tok/s requests 0.5 /s",
    ):  # fmt: skip
        assert part in text, (part, text)
    assert "TTFT 50.0 ms 58.0 ms 59.8 ms" in text, "one of 50 ms, in the bucket of 40 to 60 ms"


@pytest.mark.parametrize("width", [76, 60, 44])
def test_a_narrow_terminal_loses_no_figure(width: int) -> None:
    text = draw(change(0.1), width=width)
    assert max(map(len, text.splitlines())) == width
    words = text.split()
    for figure in ("3", "12", "43.0%", "75.0%", "(+1)", "10,000", "1,000", "10.0", "50.0", "58.0", "59.8"):
        assert figure in words, (figure, text)


def test_percentiles_are_of_what_was_observed_in_between() -> None:
    metrics = Metrics("m")
    for _ in range(100):
        metrics.observe_first_token(9.0)
    before = parse_metrics(metrics.render().decode(), 1.0)
    assert Change(before, before).percentile("time_to_first_token_seconds", 50) is None
    for seconds in (0.003, 0.003, 0.003, 0.3):
        metrics.observe_first_token(seconds)
    since = Change(before, parse_metrics(metrics.render().decode(), 2.0))
    assert 0.001 < since.percentile("time_to_first_token_seconds", 50) < 0.005
    assert 0.25 < since.percentile("time_to_first_token_seconds", 99) < 0.5
    metrics.observe_first_token(1e6)
    beyond = Change(before, parse_metrics(metrics.render().decode(), 3.0))
    assert beyond.percentile("time_to_first_token_seconds", 99) == 2560


def test_a_restarted_server_shows_no_negative_rates() -> None:
    forward = change(1.0)
    backward = Change(forward.after, forward.before)
    assert backward.rate("generation_tokens_total") > 0
    assert backward.percentile("time_to_first_token_seconds", 50) == pytest.approx(0.05)
    assert "-1" not in draw(backward)


def test_several_engines_are_summed() -> None:
    page = change(1.0).after
    two = "".join(
        f'quire:{name}{{engine="{engine}",model_name="m"}} {value}\n'
        for name, value in (("num_requests_running", 2), ("kv_cache_usage_perc", 0.5))
        for engine in (0, 1)
    )
    reading = parse_metrics(two, 1.0)
    assert reading.values["num_requests_running"] == 4
    assert "used 50.0%" in " ".join(draw(Change(reading, reading)).split())
    assert page.num_engines == 1


@pytest.mark.parametrize("server", [{}, {"namespace": "vllm"}, {"api_key": "k"}], indirect=True)
def test_once(server: MetricsServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", server.url, "--once", "--interval", "0.05", "--api-key", "k"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert server.num_asked == 2
    assert "running 3 waiting 12" in text
    assert "prefix hits 75.0%" in text


@pytest.mark.parametrize("server", [{"api_key": "k"}], indirect=True)
def test_a_missing_key_is_named(server: MetricsServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", server.url, "--once"]) == 1
    assert "wants a key: add --api-key KEY" in capsys.readouterr().err


def test_no_server_and_no_metrics(server: MetricsServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.page = lambda: b"<html>\n"
    assert main(["top", server.url, "--once"]) == 1
    server.page = lambda: b"process_cpu_seconds_total 3\n"
    assert main(["top", server.url, "--once"]) == 1
    server.close()
    assert main(["top", server.url, "--once"]) == 1
    errors = capsys.readouterr().err.splitlines()
    assert "cannot be read" in errors[0]
    assert "neither quire nor vLLM" in errors[1]
    assert f"No server answers at {server.url}" in errors[2]


@pytest.mark.parametrize("interval", ["0", "-1", "nan", "1e9"])
def test_intervals_that_make_no_sense(interval: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--once", "--interval", interval]) == 1
    assert "--interval must be" in capsys.readouterr().err


def test_a_hostile_page_cannot_command_the_terminal() -> None:
    page = 'quire:num_requests_running{engine="0",model_name="\x1b]0;owned\x07[red]x"} 1\n'
    reading = parse_metrics(page, 1.0)
    drawn = draw(Change(reading, reading))
    assert "\x1b" not in drawn
    assert "[red]x" in drawn


def watch(url: str, output: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "quire.cli.main", "top", url, "--interval", "0.1"],
        stdin=output, stdout=output, stderr=output, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "TERM": "xterm", "COLUMNS": "100", "LINES": "40"},
    )  # fmt: skip


def test_a_page_of_numbers_that_are_none_can_be_shown() -> None:
    page = """quire:num_requests_running 1
quire:generation_tokens_total %s
"""
    before, after = (parse_metrics(page % value, time) for time, value in ((1.0, "1"), (2.0, "+Inf")))
    Watch(ServerAddress("http://h")).frame(Change(before, after))
    Watch(ServerAddress("http://h")).frame(Change(before, parse_metrics(page % "NaN", 2.0)))
    with pytest.raises(RemoteError, match="metrics cannot be read"):
        parse_metrics(page % 'NaN\nquire:x_bucket{le="wide"} 1', 3.0)


def test_without_a_terminal_each_look_is_printed(server: MetricsServer) -> None:
    ours, other = os.pipe()
    with watch(server.url, other) as process, open(ours) as output:
        os.close(other)
        try:
            lines = []
            while sum("43.0%" in line for line in lines) < 2:
                lines.append(output.readline())
                assert lines[-1] != ""
            process.send_signal(signal.SIGINT)
            rest = output.read()
            assert process.wait(timeout=60) == 130
        finally:
            process.kill()
    assert "\x1b" not in "".join(lines) + rest
    assert "Traceback" not in rest


class Terminal:
    """`quire top` on a terminal of its own."""

    def __init__(self, url: str) -> None:
        self.descriptor, other = pty.openpty()
        self.process = watch(url, other)
        os.close(other)

    def wait_for(self, text: str) -> None:
        """Reads what is drawn from now on until the text is there."""
        seen, deadline = "", time.monotonic() + 60
        while text not in seen:
            assert time.monotonic() < deadline, seen[-3000:]
            if select.select([self.descriptor], [], [], 1.0)[0]:
                seen += os.read(self.descriptor, 65536).decode(errors="replace")

    def close(self) -> int:
        """Ctrl-C; returns the exit code."""
        self.process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + 60
        while self.process.poll() is None and time.monotonic() < deadline:
            if select.select([self.descriptor], [], [], 0.1)[0]:
                try:
                    os.read(self.descriptor, 65536)
                except OSError:
                    break
        code = self.process.wait(timeout=60)
        os.close(self.descriptor)
        return code


def test_it_waits_for_a_server_that_went_away(reserved_port: int) -> None:
    server = MetricsServer(port=reserved_port)
    terminal = Terminal(server.url)
    try:
        terminal.wait_for("43.0%")
        server.close()
        terminal.wait_for("waiting for it")
        server = MetricsServer(port=reserved_port)
        terminal.wait_for("43.0%")
        terminal.wait_for("75.0%")
    finally:
        server.close()
        code = terminal.close()
    assert code == 130
