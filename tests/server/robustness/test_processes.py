"""Cases 18 to 25 on a real process tree: whoever dies, freezes or is signalled, nobody waits for ever and none is left."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.server.own_server import (
    PATIENCE_S,
    OwnServer,
    counted,
    descendants,
    has_loopback_6,
    is_gone,
    own_server,
    wait_for,
)

NULL = ("--executor", "null", "--num-blocks", "9000", "--max-num-seqs", "64")
SLOW = (*NULL, "--max-num-seqs", "1")
"""The last flag counts: one sequence after the other, so that requests are pending for long enough to do something."""
LONG = {"prompt": "go on", "max_tokens": 8000, "n": 16, "ignore_eos": True}
"""Some seconds of work, and megabytes of answer, on an engine that computes nothing."""
NUM_LONGER = 128
"""Of samples instead: it does not end while a test does something, even if that is held up for seconds."""

ADOPT_ORPHANS = """
import ctypes, os, subprocess, sys
ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER
subprocess.Popen([sys.executable, *sys.argv[1:]])
while True:
    os.wait()
"""
"""Runs the rest of its command line, as a script in a container does. Linux wakes no stopped orphans of its session."""


class Answer(threading.Thread):
    """A request on a thread of its own: what came back, whole."""

    def __init__(self, server: OwnServer, **fields: Any) -> None:
        super().__init__(daemon=True)
        self._url, self._headers = server.url, server.headers
        self._body = {**LONG, **fields}
        self.status = 0
        self.text = ""
        self.start()

    def run(self) -> None:
        try:
            with httpx.Client(trust_env=False, timeout=PATIENCE_S, headers=self._headers) as client:
                answer = client.post(f"{self._url}/v1/completions", json=self._body)
                self.status, self.text = answer.status_code, answer.text
        except httpx.TransportError as error:
            self.text = repr(error)

    def wait(self) -> None:
        self.join(PATIENCE_S)
        assert not self.is_alive(), "the request waits for ever"


def pending(server: OwnServer, count: int) -> None:
    """Wait until so many samples have reached the engine; a request that it has not begun is one."""
    wait_for(lambda: num_ended(server) + load(server)["server_load"] >= count, f"{count} samples")


def num_ended(server: OwnServer) -> float:
    """Samples of LONG requests."""
    return counted(server, "generation_tokens") // LONG["max_tokens"]


def pending_answer(server: OwnServer) -> Answer:
    """A request that has reached the engine."""
    answer = Answer(server)
    pending(server, 1)
    return answer


def load(server: OwnServer) -> dict[str, float]:
    with server.client() as client:
        answer: dict[str, float] = client.get("/load").json()
        return answer


@contextmanager
def unread_stream(server: OwnServer) -> Iterator[socket.socket]:
    """A stream that has begun, of 6 MB on a socket with little room: it cannot end before somebody reads."""
    body = json.dumps({**LONG, "logprobs": 1, "return_token_ids": True, "stream": True}).encode()
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(PATIENCE_S)
        connection.connect(("127.0.0.1", server.port))
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
        connection.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
        assert connection.recv(12, socket.MSG_WAITALL) == b"HTTP/1.1 200"
        yield connection


def read_all(connection: socket.socket) -> bytes:
    pieces = []
    try:
        while piece := connection.recv(2**20):
            pieces.append(piece)
            if piece.endswith(b"0\r\n\r\n"):
                break
    except ConnectionResetError:
        pass
    return b"".join(pieces)


def error_of(answer: Answer) -> str:
    """Of a stream that had begun it is the last event, after status 200; of everything else the body of a 503."""
    answer.wait()
    assert answer.status in (200, 503)
    text = answer.text.strip().rpartition("data: ")[2] if answer.status == 200 else answer.text
    message: str = json.loads(text)["error"]["message"]
    return message


def stream_that_has_begun(server: OwnServer) -> Answer:
    answer = Answer(server, stream=True, n=NUM_LONGER)
    with server.client() as client:
        name = "quire:time_to_first_token_seconds_count"
        wait_for(
            lambda: any(
                line.startswith(name) and not line.endswith(" 0.0") for line in client.get("/metrics").text.splitlines()
            ),
            "a first token",
        )
    return answer


@pytest.fixture
def server(smollm2: str) -> Iterator[OwnServer]:
    with own_server(smollm2, *SLOW) as server:
        yield server


@pytest.fixture
def computing_server(smollm2: str) -> Iterator[OwnServer]:
    """A null executor would fill the socket of an API process that is held up for a second, and be taken for too far ahead."""
    with own_server(smollm2, "--max-num-seqs", "1") as server:
        yield server


@pytest.mark.real
def test_case_18_engine_killed_with_requests_pending(computing_server: OwnServer) -> None:
    server = computing_server
    engine = server.engine_pid
    first = stream_that_has_begun(server)
    answers = [first, *(Answer(server, stream=stream, n=NUM_LONGER) for stream in (True, False, False))]
    pending(server, NUM_LONGER + 3)
    os.kill(engine, signal.SIGSTOP)
    assert all(answer.is_alive() for answer in answers)
    os.kill(engine, signal.SIGKILL)
    assert all("engine process ended" in error_of(answer) for answer in answers)
    assert [answer.status for answer in answers] == [200, 503, 503, 503]
    assert server.status_of("/health") == 503
    assert server.status_of("/health/ready") == 503
    assert server.status_of("/health/live") == 200
    with server.client() as client:
        refused = client.post("/v1/completions", json=LONG)
        assert refused.status_code == 503
        assert refused.headers["retry-after"]
    os.kill(server.pid, signal.SIGTERM)
    assert server.wait_exit() == 0
    server.wait_all_gone()


def test_an_engine_whose_step_fails_is_lost(smollm2: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nif 'quire.engine.engine_process' in sys.orig_argv:\n"
        "    from quire.engine.engine import Engine\n    Engine.step = lambda _: [][0]\n"
    )
    with own_server(smollm2, *NULL, environment={"PYTHONPATH": str(tmp_path)}) as server:
        answer = Answer(server)
        assert "engine process ended" in error_of(answer)
        assert "IndexError" not in answer.text
        wait_for(lambda: "ended with code 1; requests get 503" in server.log(), "word of it")
        assert "IndexError" in server.log()


@pytest.mark.real
def test_case_19_engine_frozen_and_thawed(computing_server: OwnServer) -> None:
    server = computing_server
    engine = server.engine_pid
    answers = [stream_that_has_begun(server), Answer(server, n=NUM_LONGER)]
    pending(server, NUM_LONGER + 1)
    os.kill(engine, signal.SIGSTOP)
    wait_for(lambda: server.status_of("/health") == 503, "503 on /health")
    assert server.status_of("/health/live") == 200
    assert server.status_of("/health/ready") == 503
    assert all("has not been heard from" in error_of(answer) for answer in answers)
    assert [answer.status for answer in answers] == [200, 503]
    os.kill(engine, signal.SIGCONT)
    wait_for(lambda: server.status_of("/health") == 200, "recovery")
    # It was told to forget what nobody waits for any more.
    wait_for(lambda: load(server)["server_load"] == 0 == load(server)["kv_cache_usage_perc"], "idleness")
    assert counted(server, "generation_tokens") < NUM_LONGER * LONG["max_tokens"]
    with server.client() as client:
        assert client.post("/v1/completions", json={"prompt": "go on", "max_tokens": 3}).status_code == 200
    assert server.engine_pid == engine


@pytest.mark.real
def test_case_20_a_slow_prefill_is_no_hang(smollm2: str) -> None:
    """A step of some seconds, in which an engine that kept silent would be taken for dead."""
    with own_server(smollm2, "--num-blocks", "600", "--num-threads", "1", "--max-num-batched-tokens", "8192") as server:
        answer = Answer(server, prompt=list(range(1000, 7000)), max_tokens=1, n=1)
        statuses = []
        with server.client() as client:
            while answer.is_alive():
                # One after the other on one connection: a probe that waited for the step would hold up the next.
                statuses.append(client.get("/health").status_code)
                time.sleep(0.05)
        assert answer.status == 200
        assert set(statuses) == {200}
        # One or two may have come before the step, and one that waited for its end behind it.
        assert len(statuses) > 5, "nobody was answered during the step"


def test_case_22_api_process_killed(smollm2: str) -> None:
    with own_server(smollm2, *SLOW, "--api-workers", "2") as server:
        answer = pending_answer(server)
        assert len(server.api_pids) == 2
        os.kill(server.api_pids[0], signal.SIGKILL)
        assert server.wait_exit() == 1
        server.wait_all_gone()
        # Whichever of the two had it, it comes to an end: cut off, refused, or answered by the one that was left.
        answer.wait()


@pytest.mark.parametrize("frozen", [False, True])
def test_case_22_supervisor_killed(smollm2: str, frozen: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="q") as folder:
        settings: dict[str, Any] = {"python_flags": ("-c", ADOPT_ORPHANS), "environment": {"TMPDIR": folder}}
        with own_server(smollm2, *NULL, **settings) as server:
            assert list(Path(folder).iterdir())
            if frozen:
                os.kill(server.engine_pid, signal.SIGSTOP)
            (supervisor,) = server.children("quire.cli.main")
            os.kill(supervisor, signal.SIGKILL)
            server.wait_all_gone()
        assert not list(Path(folder).iterdir())


def test_case_23_sigterm_drains(smollm2: str) -> None:
    flags = (*NULL, "--drain-timeout", str(PATIENCE_S))
    with own_server(smollm2, *flags) as server, unread_stream(server) as connection, server.client() as client:
        os.kill(server.pid, signal.SIGTERM)
        wait_for(lambda: client.get("/health/ready").status_code == 503, "503 on /health/ready")
        assert client.get("/health/live").status_code == 200
        refused = client.post("/v1/completions", json=LONG)
        assert refused.status_code == 503
        assert refused.headers["retry-after"]
        assert "shutting down" in refused.json()["error"]["message"]
        assert server.process.poll() is None
        answer = read_all(connection)
        assert b"data: [DONE]" in answer
        assert answer.count(b'"finish_reason":"length"') == LONG["n"]
        assert server.wait_exit() == 0
        server.wait_all_gone()


@pytest.mark.real
def test_case_23_sigterm_to_every_process_drains(smollm2: str) -> None:
    """As systemd sends it. With the real model: one that computes nothing has nothing left to compute."""
    with own_server(smollm2, "--drain-timeout", str(PATIENCE_S)) as server:
        engine = server.engine_pid
        answer = Answer(server, max_tokens=100, n=1)
        pending(server, 1)
        os.kill(engine, signal.SIGSTOP)
        for pid in (server.pid, *descendants(server.pid)):
            os.kill(pid, signal.SIGTERM)
        os.kill(engine, signal.SIGCONT)
        answer.wait()
        assert answer.status == 200, answer.text
        assert json.loads(answer.text)["choices"][0]["finish_reason"] == "length"
        assert server.wait_exit() == 0
        server.wait_all_gone()


def test_case_23_the_drain_ends(smollm2: str) -> None:
    """With the real model: that does not come to the end of anything meanwhile."""
    with own_server(smollm2, "--drain-timeout", "0.3") as server:
        answers = [Answer(server, stream=stream, n=1) for stream in (True, False)]
        pending(server, 2)
        os.kill(server.pid, signal.SIGTERM)
        assert server.wait_exit() == 0
        server.wait_all_gone()
        for answer in answers:
            answer.wait()
            assert "shut down" in answer.text


def test_case_24_a_second_sigterm_stops(server: OwnServer) -> None:
    with unread_stream(server) as connection:
        os.kill(server.pid, signal.SIGTERM)
        wait_for(lambda: server.status_of("/health/ready") == 503, "draining")
        os.kill(server.pid, signal.SIGTERM)
        assert server.wait_exit() == 0
        server.wait_all_gone()
        assert b"[DONE]" not in read_all(connection)


@pytest.mark.parametrize("executor", ["null", "uniproc"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_case_24_a_signal_while_loading(smollm2: str, executor: str, number: int) -> None:
    with own_server(smollm2, "--executor", executor, ready=False) as server:
        wait_for(lambda: server.children("quire.engine.engine_process"), "an engine process")
        everyone = descendants(server.pid)
        os.kill(server.pid, number)
        assert server.wait_exit() == 0
        assert all(is_gone(pid) for pid in everyone)


def test_an_engine_that_is_killed_while_loading_ends_the_server(smollm2: str, tmp_path: Path) -> None:
    """As by a system without memory: nothing could ever be served."""
    # It does not get ready before the signal comes.
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, time\nif 'quire.engine.engine_process' in sys.orig_argv:\n    time.sleep(600)\n"
    )
    environment = {"PYTHONPATH": str(tmp_path)}
    with own_server(smollm2, "--executor", "uniproc", ready=False, environment=environment) as server:
        wait_for(lambda: server.children("quire.engine.engine_process"), "an engine process")
        everyone = descendants(server.pid)
        os.kill(server.engine_pid, signal.SIGKILL)
        assert server.wait_exit() == 1
        assert all(is_gone(pid) for pid in everyone)
        assert "ended with code -9 before it was ready" in server.log()


def test_an_api_process_that_cannot_load_ends_the_server(smollm2: str, tmp_path: Path) -> None:
    """Its port is open by then, and nobody would ever be answered."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "if 'quire.server.api_process' in sys.orig_argv:\n    sys.modules['quire.server.api_service'] = None\n"
    )
    with own_server(smollm2, *NULL, ready=False, environment={"PYTHONPATH": str(tmp_path)}) as server:
        assert server.wait_exit() == 1
        assert "API process 0 ended with code 1; stopping." in server.log()


def test_what_the_hubs_library_says_is_said_once(tmp_path: Path) -> None:
    """It prints its log itself, here of the tries to reach a hub, between which the engine process does not wait."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, time\nif 'quire.engine.engine_process' in sys.orig_argv:\n    time.sleep = lambda seconds: None\n"
    )
    environment = {
        "PYTHONPATH": str(tmp_path), "HF_HOME": str(tmp_path), "HF_ENDPOINT": "http://127.0.0.1:9",
        "HF_HUB_OFFLINE": "0", "NO_PROXY": "127.0.0.1",
    }  # fmt: skip
    with own_server("org/model", ready=False, environment=environment) as server:
        assert server.wait_exit() == 1
        said = server.log()
    assert "the hub could not be reached" in said
    assert said.count("[Retry 1/") == 1


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells what a process was started with")
@pytest.mark.parametrize("given", [{}, {"OPENBLAS_NUM_THREADS": "3"}], ids=["by itself", "as told"])
def test_a_servers_processes_start_one_blas_thread(
    smollm2: str, given: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless told otherwise. Others would spin, as they start, on the cores that load the model."""
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    expected = f"OPENBLAS_NUM_THREADS={given.get('OPENBLAS_NUM_THREADS', '1')}".encode()
    with own_server(smollm2, *NULL, environment=given) as server:
        for pid in (server.engine_pid, *server.api_pids):
            assert expected in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")


def test_a_quiet_server_says_nothing(smollm2: str, reserved_port: int) -> None:
    port = str(reserved_port)
    command = [sys.executable, "-m", "quire.cli.main", "serve", smollm2, "--quiet", "--port", port, *NULL]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=PATIENCE_S) as client:

            def answers() -> bool:
                try:
                    return client.get("/health/ready").status_code == 200
                except httpx.TransportError:
                    return False

            wait_for(answers, "becoming ready")
            assert client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1}).status_code == 200
    finally:
        server.terminate()
        output, errors = server.communicate(timeout=PATIENCE_S)
    assert (output, errors) == (b"", b"")


@pytest.mark.parametrize(("host", "shown"), [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]")])
def test_a_port_that_the_system_chose_is_told_in_any_case(smollm2: str, host: str, shown: str) -> None:
    if host == "::1" and not has_loopback_6():
        pytest.skip("no address of version 6 here")
    with own_server(smollm2, "--quiet", "--host", host, *NULL, ready=False) as server:
        assert f"Listening on http://{shown}:{server.port} " in server.log()


def test_case_25_port_in_use(smollm2: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "quire.cli.main", "serve", smollm2, "--port", port]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.returncode not in (0, -signal.SIGKILL)
    assert f"Cannot listen on 127.0.0.1:{port}" in ended.stderr
    assert "--port" in ended.stderr
    assert "dtype" not in ended.stdout + ended.stderr, "it began to load"
