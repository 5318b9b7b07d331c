"""Log lines: their fields, what may never be in them, and disks that are full."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.server.records import make_record
from tests.server.running_server import RunningServer

from quire.server.request_log import LOGGERS, LineHandler, configure_logging, log_request, tenant_hash


@pytest.fixture(autouse=True)
def loggers_as_before() -> Iterator[None]:
    before = {name: (logging.getLogger(name).handlers, logging.getLogger(name).propagate) for name in LOGGERS}
    level = logging.getLogger("quire").level
    logging.getLogger("quire").setLevel(logging.INFO)
    yield
    for name, (handlers, propagate) in before.items():
        logging.getLogger(name).handlers, logging.getLogger(name).propagate = handlers, propagate
    logging.getLogger("quire").setLevel(level)


@pytest.fixture
def log_file(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    path = tmp_path / "log"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    yield path, descriptor
    os.close(descriptor)


def test_one_json_line_a_request(log_file: tuple[Path, int]) -> None:
    path, descriptor = log_file
    configure_logging("json", descriptor)
    log_request(make_record(x_request_id="mine", tenant="key-hash"))
    (line,) = map(json.loads, path.read_text().splitlines())
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "info",
        "logger": "quire.requests",
        "message": "request",
        "request_id": "cmpl-1",
        "client_id": "mine",
        "tenant": tenant_hash("key-hash"),
        "route": "/v1/chat/completions",
        "model": "smollm2",
        "status": 200,
        "finish_reason": "stop",
        "error": None,
        "stream": False,
        "n": 1,
        "prompt_tokens": 30,
        "cached_tokens": 16,
        "generation_tokens": 11,
        "preemptions": 0,
        "queue_ms": 500.0,
        "prefill_ms": 1500.0,
        "ttft_ms": 2000.0,
        "tpot_ms": 200.0,
        "e2e_ms": 4250.0,
    }


def test_text_lines_are_for_people(log_file: tuple[Path, int]) -> None:
    path, descriptor = log_file
    configure_logging("text", descriptor)
    log_request(make_record())
    (line,) = path.read_text().splitlines()
    assert "request request_id=cmpl-1 " in line
    assert "ttft_ms=2000.0 tpot_ms=200.0 e2e_ms=4250.0" in line
    assert "client_id" not in line, "what is not known is left out"


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_client_cannot_write_lines_or_escape_codes(log_file: tuple[Path, int], log_format: str) -> None:
    path, descriptor = log_file
    configure_logging(log_format, descriptor)
    log_request(make_record(x_request_id='x" status=500\n{"level":"error"}\r\x1b[2J\ud800é', tenant="\ud800"))
    raw = path.read_bytes()
    assert raw.count(b"\n") == 1
    assert b"\x1b" not in raw
    assert b"\r" not in raw
    assert b'\\"level\\"' in raw


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_tenants_appear_only_as_a_hash(log_file: tuple[Path, int], log_format: str) -> None:
    path, descriptor = log_file
    configure_logging(log_format, descriptor)
    log_request(make_record(tenant="alice@example.org"))
    assert "alice" not in path.read_text()
    assert tenant_hash("alice@example.org") in path.read_text()


def test_case_38_a_full_disk_costs_the_line_and_nothing_else(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    configure_logging("json", full)
    for _ in range(3):
        log_request(make_record())
    assert capfd.readouterr() == ("", ""), "no tracebacks instead"
    # Once there is room again, lines come again.
    path = tmp_path / "log"
    room = os.open(path, os.O_WRONLY | os.O_CREAT)
    os.dup2(room, full)
    log_request(make_record())
    assert len(path.read_text().splitlines()) == 1
    os.close(room)
    os.close(full)


def test_a_reader_that_went_away_costs_the_line(capfd: pytest.CaptureFixture[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    configure_logging("text", writer)
    log_request(make_record())
    os.close(writer)
    assert capfd.readouterr() == ("", "")


def test_exceptions_are_one_json_line_too(log_file: tuple[Path, int]) -> None:
    path, descriptor = log_file
    configure_logging("json", descriptor)
    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("quire").exception("it failed")
    (line,) = map(json.loads, path.read_text().splitlines())
    assert line["message"] == "it failed"
    assert "ValueError: broken" in line["exception"]


def test_the_level_silences_requests(log_file: tuple[Path, int]) -> None:
    path, descriptor = log_file
    configure_logging("json", descriptor)
    logging.getLogger("quire").setLevel(logging.WARNING)
    log_request(make_record())
    assert path.read_text() == ""
    assert isinstance(logging.getLogger("quire").handlers[0], LineHandler)


def test_a_pipe_that_nobody_reads_holds_nobody_up() -> None:
    read_end, write_end = os.pipe()
    try:
        configure_logging("json", write_end)
        requests = threading.Thread(target=lambda: [log_request(make_record()) for _ in range(1000)], daemon=True)
        requests.start()
        requests.join(60)
        assert not requests.is_alive()
        unread = os.read(read_end, 2**20)
        assert [json.loads(line)["message"] for line in unread.splitlines()] == ["request"] * unread.count(b"\n")
        log_request(make_record(x_request_id="later"))
        assert json.loads(os.read(read_end, 2**20))["client_id"] == "later"
    finally:
        os.close(read_end)
        os.close(write_end)


def test_a_server_says_what_its_engine_decided(tiny_server: RunningServer) -> None:
    assert "maximum concurrency for 2,048 tokens" in tiny_server.log()
