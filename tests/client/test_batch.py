"""Batches: every line has one record, whatever becomes of the run, the server, or the lines."""

from __future__ import annotations

import asyncio
import codecs
import json
import os
import signal
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.conftest import ENVIRONMENT, QUIRE
from tests.fake_server import FakeServer

from quire.client.address import RemoteError, parse_address
from quire.client.batch import BatchCounts, BatchRun, count_requests
from quire.client.batch_file import BatchOutput, readable_twice
from quire.errors import InvalidRequestError, QuireError


def request(custom_id: str, **changes: Any) -> dict[str, Any]:
    body = {"model": "fake", "prompt": custom_id, "max_tokens": 4}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": body, **changes}


def write(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def run(source: Path, target: Path, url: str, **options: Any) -> BatchCounts:
    async def ask_all(output: BatchOutput) -> BatchCounts:
        count_requests(source, output.done)
        options_with_defaults = {"max_concurrency": 4, "timeout_s": 30, **options}
        return await BatchRun(source, output, parse_address(url), **options_with_defaults).run()

    with BatchOutput(target) as output:
        return asyncio.run(ask_all(output))


def records(path: Path) -> dict[str, dict[str, Any]]:
    return {record["custom_id"]: record for record in map(json.loads, path.read_text().splitlines())}


def test_records_have_openais_shape(server: FakeServer, tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", [request("a"), "", request("e", url="/v1/embeddings"), request("b")])
    counts = run(source, tmp_path / "out.jsonl", server.url)
    assert (counts.earlier, counts.completed, counts.failed) == (0, 3, 0)
    found = records(tmp_path / "out.jsonl")
    assert found["a"].keys() == {"id", "custom_id", "response", "error"}
    assert found["a"]["error"] is None
    response = found["a"]["response"]
    assert response.keys() == {"status_code", "request_id", "body"}
    assert response["status_code"] == 200
    assert response["request_id"].startswith("fake-")
    assert response["body"]["choices"][0]["text"] == "echo a"
    assert found["e"]["response"]["body"]["data"][0]["embedding"] == [0.5]
    assert len({record["id"] for record in found.values()}) == 3
    assert not list(tmp_path.glob("*.lock"))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{broken", "is not JSON"),
        ("[1]", "no object with a custom_id"),
        ({"method": "POST"}, "no object with a custom_id"),
        (request("x", method="GET"), "method must be POST"),
        (request("x", url="/v1/models"), "url must be one of"),
        (request("x", url="http://elsewhere/v1/completions"), "url must be one of"),
        (request("x", body=[]), "body must be an object"),
        (request("x", body={"stream": True}), "cannot stream"),
        (request("good"), "'good' was used before"),
    ],
)
def test_bad_lines_become_error_records(server: FakeServer, tmp_path: Path, line: Any, problem: str) -> None:
    source = write(tmp_path / "in.jsonl", [request("good"), line])
    counts = run(source, tmp_path / "out.jsonl", server.url, max_concurrency=1)
    assert (counts.completed, counts.failed) == (1, 1)
    lines = [json.loads(text) for text in (tmp_path / "out.jsonl").read_text().splitlines()]
    bad = next(record for record in lines if record["error"])
    assert bad["response"] is None
    assert bad["error"]["code"] == "invalid_request"
    assert problem in bad["error"]["message"]
    assert "line 2" in bad["error"]["message"]
    assert len(server.bodies) == 1, "only the good line was sent"
    again = run(source, tmp_path / "out.jsonl", server.url)
    assert (again.earlier, again.total) == (2, 2), "a bad line is not lost or repeated either"


@pytest.mark.parametrize("line", [b'{"custom_id": "\xff", "method": "POST"}', b"[" * 100_000])
def test_lines_that_are_no_text_or_nested_too_deeply_cost_the_others_nothing(
    server: FakeServer, tmp_path: Path, line: bytes
) -> None:
    source = write(tmp_path / "in.jsonl", [request("a"), request("b")])
    source.write_bytes(line + b"\n" + source.read_bytes())
    counts = run(source, tmp_path / "out.jsonl", server.url)
    assert (counts.completed, counts.failed) == (2, 1)
    assert "line 1 is not JSON" in records(tmp_path / "out.jsonl")[None]["error"]["message"]  # type: ignore[index]


def test_a_byte_order_mark_costs_no_request(server: FakeServer, tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", [request("a"), request("b")])
    source.write_bytes(codecs.BOM_UTF8 + source.read_bytes())
    assert run(source, tmp_path / "out.jsonl", server.url).completed == 2
    source.write_bytes(source.read_bytes().removeprefix(codecs.BOM_UTF8))
    assert run(source, tmp_path / "out.jsonl", server.url).earlier == 2


def test_a_pipe_can_be_read_twice(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    lines = "".join(json.dumps(request(name)) + "\n" for name in "abc")
    writer = threading.Thread(target=pipe.write_text, args=(lines,))
    writer.start()
    with readable_twice(pipe) as source:
        assert count_requests(source, set()) == count_requests(source, set()) == 3
    writer.join()
    assert not source.exists()
    with readable_twice(write(tmp_path / "in.jsonl", [])) as source:
        assert source == tmp_path / "in.jsonl"
    with pytest.raises(InvalidRequestError, match="cannot be read: Is a directory"), readable_twice(tmp_path):
        pass


def test_the_first_failure_is_kept_with_its_reason(server: FakeServer, tmp_path: Path) -> None:
    server.plan = ["ok", "refuse", "refuse"]
    source = write(tmp_path / "in.jsonl", [request("a"), request("b"), request("c")])
    counts = run(source, tmp_path / "out.jsonl", server.url, max_concurrency=1)
    assert (counts.failed, counts.first_failure) == (2, "b: the server answered 400: this is refused")
    broken = run(write(tmp_path / "in2.jsonl", ["{"]), tmp_path / "out2.jsonl", server.url)
    assert (broken.first_failure or "").startswith("line 1 is not JSON")


def test_whether_all_failed_counts_earlier_runs(server: FakeServer, tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    assert not run(write(tmp_path / "in.jsonl", []), target, server.url).all_failed
    lines: list[Any] = ["{broken", request("refused")]
    server.plan = ["refuse"]
    assert run(write(tmp_path / "in.jsonl", lines), target, server.url).all_failed
    again = run(tmp_path / "in.jsonl", target, server.url)
    assert (again.earlier, again.earlier_answered, again.all_failed) == (2, 0, True)
    lines += [request("answered")]
    assert not run(write(tmp_path / "in.jsonl", lines), target, server.url).all_failed
    lines += [request("unknown", method="GET")]
    last = run(write(tmp_path / "in.jsonl", lines), target, server.url)
    assert (last.failed, last.earlier_answered, last.all_failed) == (1, 1, False)


def test_an_output_that_is_no_file_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, Path(os.devnull)):
        with pytest.raises(InvalidRequestError, match="is no file"):
            BatchOutput(path)


def test_refusals_are_records_and_a_busy_server_is_asked_again(server: FakeServer, tmp_path: Path) -> None:
    server.plan = ["refuse", "busy", "loading"]
    source = write(tmp_path / "in.jsonl", [request("a"), request("b")])
    counts = run(source, tmp_path / "out.jsonl", server.url, max_concurrency=1)
    found = records(tmp_path / "out.jsonl")
    assert (counts.completed, counts.failed) == (1, 1)
    assert (found["a"]["response"]["status_code"], found["a"]["error"]) == (400, None)
    assert found["a"]["response"]["body"]["error"]["message"] == "this is refused"
    assert found["b"]["response"]["status_code"] == 200
    assert len(server.bodies) == 4


@pytest.mark.parametrize(
    ("retry_after", "waits"),
    [("0", 0.1), ("7", 7), ("-7", 0.1), ("1e9", 30), ("nan", 0.1), ("Wed, 21 Oct 2026 07:28:00 GMT", 1)],
)
def test_a_busy_server_says_how_long_to_wait(
    server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, retry_after: str, waits: float
) -> None:
    waited, sleep = list[float](), asyncio.sleep

    async def note(seconds: float) -> None:
        if threading.current_thread() is threading.main_thread():
            waited.append(seconds)
            seconds = 0
        await sleep(seconds)

    monkeypatch.setattr(asyncio, "sleep", note)
    server.plan, server.retry_after = ["busy"], retry_after
    assert run(write(tmp_path / "in.jsonl", [request("a")]), tmp_path / "out.jsonl", server.url).completed == 1
    assert [seconds for seconds in waited if seconds] == [waits]


def test_an_answer_of_another_shape_is_kept_as_it_is(server: FakeServer, tmp_path: Path) -> None:
    server.plan = ["list"]
    assert run(write(tmp_path / "in.jsonl", [request("a")]), tmp_path / "out.jsonl", server.url).completed == 1
    assert records(tmp_path / "out.jsonl")["a"]["response"] == {"status_code": 200, "request_id": None, "body": []}


def test_what_a_server_is_too_busy_for_is_left_to_the_next_run(
    server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.client.batch.NUM_ATTEMPTS", 2)
    server.plan = ["ok", "busy", "busy"]
    source = write(tmp_path / "in.jsonl", [request("a"), request("b")])
    with pytest.raises(RemoteError, match=r"stays busy \(429 .*run again"):
        run(source, tmp_path / "out.jsonl", server.url, max_concurrency=1)
    assert set(records(tmp_path / "out.jsonl")) == {"a"}
    assert server.plan == [], "it was asked as often as may be"
    again = run(source, tmp_path / "out.jsonl", server.url)
    assert (again.earlier, again.completed) == (1, 1)


def test_a_hanging_request_is_an_error_record_and_the_rest_is_answered(server: FakeServer, tmp_path: Path) -> None:
    server.plan = ["ok", "hang"]
    source = write(tmp_path / "in.jsonl", [request(str(index)) for index in range(5)])
    counts = run(source, tmp_path / "out.jsonl", server.url, timeout_s=5)
    assert (counts.completed, counts.failed) == (4, 1)
    codes = [record["error"]["code"] for record in records(tmp_path / "out.jsonl").values() if record["error"]]
    assert codes == ["timeout"]


def test_a_server_that_goes_away_costs_no_request(
    server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.client.batch.NUM_ATTEMPTS", 2)
    source = write(tmp_path / "in.jsonl", [request(str(index)) for index in range(5)])
    with FakeServer("fake") as gone:
        url = gone.url
    with pytest.raises(RemoteError, match="run again"):
        run(source, tmp_path / "out.jsonl", url)
    assert (tmp_path / "out.jsonl").read_text() == ""
    assert run(source, tmp_path / "out.jsonl", server.url).completed == 5


def test_how_a_server_went_away_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken connection has no words of its own."""

    async def broken(*_: object, **__: object) -> None:
        raise httpx.ReadError("")

    monkeypatch.setattr("quire.client.batch.NUM_ATTEMPTS", 1)
    monkeypatch.setattr(httpx.AsyncClient, "post", broken)
    source = write(tmp_path / "in.jsonl", [request("a")])
    with pytest.raises(RemoteError, match="The server is gone: ReadError; run again"):
        run(source, tmp_path / "out.jsonl", "http://127.0.0.1:9")


def test_an_output_of_another_input_is_refused(server: FakeServer, tmp_path: Path) -> None:
    run(write(tmp_path / "in.jsonl", [request("a")]), tmp_path / "out.jsonl", server.url)
    before = (tmp_path / "out.jsonl").read_bytes()
    with pytest.raises(InvalidRequestError, match="another input"):
        run(write(tmp_path / "in.jsonl", [request("changed")]), tmp_path / "out.jsonl", server.url)
    assert (tmp_path / "out.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    "content", ["something else\n", '{"custom_id": "a"}\n', "[1]\n", '{"id": "a", "response": 5}\n']
)
def test_a_file_that_holds_no_records_is_left_alone(tmp_path: Path, content: str) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text(content)
    with pytest.raises(InvalidRequestError, match="line 1 is no record"):
        BatchOutput(path)
    assert path.read_text() == content
    assert run_twice_is_refused(tmp_path / "other.jsonl")


def run_twice_is_refused(path: Path) -> bool:
    with BatchOutput(path), pytest.raises(InvalidRequestError, match="Another run"):
        BatchOutput(path)
    return True


def test_a_full_disk_stops_the_run(server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    # All of them would take seconds: the disk turns out to be full long before, even if the writer does not run at once.
    server.delay_s = 0.5
    source = write(tmp_path / "in.jsonl", [request(str(index)) for index in range(50)])
    with pytest.raises(QuireError, match="No space left on device; make room and run again"):
        run(source, tmp_path / "out.jsonl", server.url)
    assert len(server.bodies) < 50


@given(cut=st.floats(0, 1))
def test_a_file_cut_anywhere_is_repaired(tmp_path_factory: pytest.TempPathFactory, cut: float) -> None:
    path = tmp_path_factory.mktemp("cut") / "out.jsonl"
    whole = "".join(json.dumps({"id": f"id-{index}", "text": "äöü"}) + "\n" for index in range(4)).encode()
    path.write_bytes(whole[: round(cut * len(whole))])
    complete = path.read_bytes().count(b"\n")
    with BatchOutput(path) as output:
        assert output.done == {f"id-{index}" for index in range(complete)}
        output.append({"id": f"id-{index}", "text": "äöü"} for index in range(complete, 4))
    assert [json.loads(line)["id"] for line in path.read_bytes().splitlines()] == [f"id-{i}" for i in range(4)]


NUM_LINES = 60


def start(source: Path, target: Path, url: str) -> subprocess.Popen[bytes]:
    words = [QUIRE, "run-batch", "-i", str(source), "-o", str(target), "--url", url, "--max-concurrency", "4", "-q"]
    return subprocess.Popen(words, env=ENVIRONMENT, stderr=subprocess.PIPE)


def wait_for_lines(path: Path, count: int) -> None:
    while not path.exists() or path.read_bytes().count(b"\n") < count:
        time.sleep(0.005)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_run_is_taken_up(server: FakeServer, tmp_path: Path, how: signal.Signals) -> None:
    source = write(tmp_path / "in.jsonl", [request(f"r{index}") for index in range(NUM_LINES)])
    target = tmp_path / "out.jsonl"
    for part, num_answers in ((10, 12), (30, 26)):
        # Some more than it takes: requests of the run before may still be on their way.
        server.plan = ["ok"] * num_answers + ["hang"] * NUM_LINES
        with start(source, target, server.url) as process:
            wait_for_lines(target, part)
            process.send_signal(how)
            assert process.wait(30) == (130 if how == signal.SIGINT else -how)
        assert part <= len(target.read_bytes().splitlines()) < NUM_LINES
    server.plan = []
    with target.open("ab") as file:
        file.write(b'{"id": "batch_req_half a rec')
    with start(source, target, server.url) as process:
        assert process.wait(30) == 0
    answered = Counter(json.loads(line)["custom_id"] for line in target.read_text().splitlines())
    assert answered == {f"r{index}": 1 for index in range(NUM_LINES)}
