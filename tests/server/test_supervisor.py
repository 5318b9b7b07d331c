"""What the supervisor decides of its children; real process trees are in robustness/test_processes.py."""

from __future__ import annotations

import logging
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.server.own_server import has_loopback_6

from quire.config import EngineConfig, ServerConfig
from quire.engine.parent_watch import LEAVE
from quire.errors import QuireError
from quire.server import supervisor
from quire.server.supervisor import Supervisor, listen, private_directory


class Process:
    """A child that ends with `code` when it gets one of the signals in `ends_by`."""

    def __init__(self, events: list[Any], *ends_by: int, code: int | None = None) -> None:
        self.returncode = code
        self.waited = False
        self._events = events
        self._ends_by = ends_by

    def poll(self) -> int | None:
        return self.returncode

    def send_signal(self, number: int) -> None:
        """As Popen's: who ended gets none."""
        if self.returncode is None:
            self._events.append((self, number))
            if number in self._ends_by:
                self.returncode = -number

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self) -> None:
        assert self.returncode is not None
        self.waited = True


def supervised(directory: Path, engine: Process, *api: Process, **config: Any) -> Supervisor:
    made = Supervisor(ServerConfig(**config), str(directory), "http://here")
    made._engine = engine  # type: ignore[assignment]
    made._api = list(api)  # type: ignore[arg-type]
    return made


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(logging.getLogger("quire"), "propagate", True)
    caplog.set_level(logging.INFO, "quire")
    return caplog


@pytest.fixture
def no_patience(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that only sleeping moves."""
    clock = [0.0]

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=sleep))
    return clock


def test_api_processes_leave_before_their_engine(tmp_path: Path, no_patience: list[float]) -> None:
    events: list[Any] = []
    engine, first, second = (Process(events, LEAVE) for _ in range(3))
    assert supervised(tmp_path, engine, first, second)._stop(3, 10.0) == 3
    assert events == [(first, LEAVE), (second, LEAVE), (engine, LEAVE)]
    assert all(process.waited for process in (engine, first, second))
    assert no_patience == [0.0]


def test_who_does_not_leave_in_time_is_killed(tmp_path: Path, no_patience: list[float]) -> None:
    events: list[Any] = []
    engine, deaf, other = Process(events, signal.SIGKILL), Process(events, signal.SIGKILL), Process(events, LEAVE)
    supervised(tmp_path, engine, deaf, other)._stop(0, 10.0)
    assert events == [
        *((deaf, LEAVE), (other, LEAVE), (deaf, signal.SIGKILL)),
        *((engine, LEAVE), (engine, signal.SIGKILL)),
    ]
    assert no_patience[0] == pytest.approx(20.0, abs=0.1), "the drain and the grace; the grace again"


def test_a_second_signal_ends_the_patience(tmp_path: Path, no_patience: list[float]) -> None:
    events: list[Any] = []
    made = supervised(tmp_path, Process(events, signal.SIGKILL), Process(events, signal.SIGKILL))
    made._signals = [signal.SIGTERM]
    for child in (made._engine, *made._api):
        made._end([child], 100.0, 1 if child is made._engine else 0)
    assert no_patience[0] == pytest.approx(100.5, abs=0.1)
    made._api = [Process(events, signal.SIGKILL)]  # type: ignore[list-item]
    made._end(made._api, 0.1, 0)
    assert no_patience[0] == pytest.approx(100.6, abs=0.1), "none is given more than it had"


@pytest.mark.parametrize(
    ("code", "was_ready", "result", "said"),
    [
        (-9, False, 1, "The engine process ended with code -9 before it was ready; stopping."),
        (1, False, 1, None),
        (1, True, None, "The engine process ended with code 1; requests get 503 until the server is restarted."),
    ],
)
def test_an_engine_that_is_lost(
    tmp_path: Path, log: pytest.LogCaptureFixture, code: int, was_ready: bool, result: int | None, said: str | None
) -> None:
    if was_ready:
        (tmp_path / "requests").touch()
    events: list[Any] = []
    api = Process(events, LEAVE)
    made = supervised(tmp_path, Process(events, code=code), api)
    assert made._check_children() == result
    assert log.messages == ([] if said is None else [said])
    assert (api.returncode is None) is was_ready
    if was_ready:
        assert made._check_children() is None
        assert log.messages == [said], "it is said once"


def test_an_api_process_that_is_lost_ends_the_server(
    tmp_path: Path, log: pytest.LogCaptureFixture, no_patience: list[float]
) -> None:
    events: list[Any] = []
    engine, other = Process(events, LEAVE), Process(events, signal.SIGKILL)
    made = supervised(tmp_path, engine, other, Process(events, code=-11), drain_timeout=1000)
    assert made._check_children() == 1
    assert log.messages == ["API process 1 ended with code -11; stopping."]
    assert events == [(other, LEAVE), (other, signal.SIGKILL), (engine, LEAVE)]
    assert no_patience[0] == pytest.approx(5.0, abs=0.1), "no drain: some requests are lost already"


def test_a_tree_that_is_whole_goes_on(tmp_path: Path) -> None:
    assert supervised(tmp_path, Process([]), Process([]))._check_children() is None


def test_it_is_ready_once_and_ends_by_a_signal(
    tmp_path: Path, log: pytest.LogCaptureFixture, no_patience: list[float]
) -> None:
    events: list[Any] = []
    made = supervised(tmp_path, Process(events, LEAVE), Process(events, signal.SIGKILL), drain_timeout=2)
    asked: list[bool] = []

    def was_ready() -> bool:
        asked.append(True)
        return len(asked) == 2

    def check() -> int | None:
        if len(checked) == 3:
            made._signals.append(signal.SIGTERM)
        checked.append(True)
        return None

    checked: list[bool] = []
    made._engine_was_ready = was_ready  # type: ignore[method-assign]
    made._check_children = check  # type: ignore[method-assign]
    read_end, write_end = socket.socketpair()
    with read_end, write_end:
        read_end.settimeout(0.001)
        write_end.send(b"xx")
        assert made.watch(read_end) == 0
        with pytest.raises(TimeoutError):
            read_end.recv(1)
    assert no_patience[0] == pytest.approx(7.0, abs=0.1), "the drain and the grace"
    assert log.messages[0] == "Ready: http://here"
    assert log.messages[1].startswith("Stopping: running requests get 2 s to finish")
    assert len(log.messages) == len(asked) == 2


def test_signals_are_noted_and_wake(tmp_path: Path) -> None:
    made = supervised(tmp_path, Process([]))
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)}
    try:
        with made.catch_signals() as wakeup:
            assert wakeup.gettimeout() == supervisor.POLL_S
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
                os.kill(os.getpid(), number)
                assert wakeup.recv(10) == bytes([number])
            assert made._signals == [signal.SIGTERM, signal.SIGINT]
        assert signal.set_wakeup_fd(-1) == -1
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def test_several_api_processes_share_a_folder_for_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", "/of/another")
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "3")
    environment = supervised(tmp_path, Process([]), api_workers=1)._environment()
    assert "PROMETHEUS_MULTIPROC_DIR" not in environment
    assert environment["OPENBLAS_NUM_THREADS"] == "3"
    monkeypatch.delenv("OPENBLAS_NUM_THREADS")
    environment = supervised(tmp_path, Process([]), api_workers=2)._environment()
    assert environment["PROMETHEUS_MULTIPROC_DIR"] == str(tmp_path / "metrics")
    assert environment["OPENBLAS_NUM_THREADS"] == "1"
    assert (tmp_path / "metrics").is_dir()
    assert environment["PATH"] == os.environ["PATH"]


def test_a_child_is_its_own_group_and_reads_its_orders(tmp_path: Path) -> None:
    (tmp_path / "told.py").write_text(
        "import os, sys\nprint(os.getpgid(0) == os.getpid(), sys.stdin.read(), flush=True)"
    )
    environment = {"PYTHONPATH": str(tmp_path)}
    code = (
        "import json\nfrom quire.server.supervisor import _spawn\n"
        f"child = _spawn('told', {{'a': 1}}, (), {environment!r})\nraise SystemExit(child.wait())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ('True {"a": 1}\n', 0), done.stderr


def test_only_children_accept_connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who came when they have gone would wait for as long as this process does."""
    monkeypatch.setattr(supervisor, "_spawn", lambda *_: Process([]))
    with listen("127.0.0.1", 0) as listener:
        address = listener.getsockname()
        made = supervised(tmp_path, Process([]))
        made.start(EngineConfig(model="any"), "null", listener)
        os.close(made._parent_end)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, timeout=10)


def test_whoever_comes_early_waits_in_line() -> None:
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port), timeout=10):
            with pytest.raises(QuireError, match=f"Cannot listen on 127.0.0.1:{port} "), listen("127.0.0.1", port):
                pass
            listener.accept()[0].close()
    with listen("127.0.0.1", port) as again:
        assert again.getsockname()[1] == port


def test_addresses_of_version_6() -> None:
    if not has_loopback_6():
        pytest.skip("no address of version 6 here")
    with listen("::1", 0) as listener:
        assert listener.family == socket.AF_INET6


def test_the_folder_is_private_short_and_gone_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with private_directory() as directory:
        assert stat.S_IMODE(os.stat(directory).st_mode) == 0o700
        Path(directory, "left").touch()
    assert not os.path.exists(directory)
    room = supervisor.MAX_DIRECTORY_LENGTH - len(os.path.basename(directory)) - 1
    base = Path("/tmp") / f"q{os.getpid()}"
    for length, fits in ((room, True), (room + 1, False)):
        parent = base / ("x" * (length - len(str(base)) - 1))
        parent.mkdir(parents=True)
        monkeypatch.setattr(tempfile, "tempdir", str(parent))
        try:
            if fits:
                with private_directory() as directory:
                    assert len(directory) == supervisor.MAX_DIRECTORY_LENGTH
            else:
                with pytest.raises(QuireError, match=f"of at most {room} bytes"), private_directory():
                    pass
            assert not list(parent.iterdir())
        finally:
            parent.rmdir()
    base.rmdir()
