"""`quire chat --url` and `quire complete` against a server."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cli.conftest import ENVIRONMENT, QUIRE, RunQuire
from tests.cli.test_chat import Terminal
from tests.fake_server import FakeServer
from tests.server.own_server import wait_for

from quire.cli.main import main
from quire.client import batch

AWAY = ("--url", "http://127.0.0.1:9")
BATCH = ("-i", "no-such-file.jsonl", "-o", "never-written.jsonl")


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer("fake", api_key="secret") as server:
        yield server


@pytest.fixture
def remote(quire: RunQuire, server: FakeServer) -> RunQuire:
    def run(command: str, *words: object, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return quire(command, "--url", server.url, "--api-key", "secret", *words, stdin=stdin)

    return run


def test_a_conversation(remote: RunQuire, server: FakeServer) -> None:
    done = remote("chat", "-n", 3, "--system", "Be brief.", "--seed", 5, stdin="one\ntwo\n/clear\nthree\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout == " w0 w1 w2\n" * 3
    assert done.stderr.count("[3 tokens, ") == 3
    assert [len(body["messages"]) for body in server.bodies] == [2, 4, 2], "system, and the turns until /clear"
    assert server.bodies[1]["messages"][2] == {"role": "assistant", "content": " w0 w1 w2"}
    assert (server.bodies[0]["seed"], server.bodies[0]["max_tokens"], server.bodies[0]["model"]) == (5, 3, "fake")
    assert "top_p" not in server.bodies[0]


def test_a_quiet_conversation(remote: RunQuire) -> None:
    done = remote("chat", "-q", "-n", 3, stdin="one\n")
    assert (done.stdout, done.stderr) == (" w0 w1 w2\n", "")


def test_a_turn_that_fails_is_told_and_forgotten(remote: RunQuire, server: FakeServer) -> None:
    server.plan = ["refuse", "cut"]
    done = remote("chat", "-n", 3, stdin="one\ntwo\nthree\n")
    assert done.returncode == 1
    assert "this is refused" in done.stderr
    assert "does not answer" in done.stderr
    assert len(server.bodies[-1]["messages"]) == 1


@contextmanager
def on_terminal(server: FakeServer, command: str, *flags: str) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    words = [QUIRE, command, "--url", server.url, "--api-key", "secret", *flags]
    with subprocess.Popen(
        words, stdin=theirs, stdout=theirs, stderr=theirs, env={**ENVIRONMENT, "TERM": "dumb"}
    ) as process:
        os.close(theirs)
        try:
            yield Terminal(process, ours)
        finally:
            process.kill()
            os.close(ours)


@contextmanager
def chat_on_terminal(server: FakeServer, *flags: str) -> Iterator[Terminal]:
    with on_terminal(server, "chat", *flags) as terminal:
        terminal.read_until("> ")
        yield terminal


def test_on_a_terminal_a_turn_that_fails_is_told_and_forgotten(server: FakeServer) -> None:
    server.plan = ["refuse", "cut"]
    with chat_on_terminal(server, "-n", "3") as terminal:
        for message, shown in (("one", "this is refused"), ("two", "does not answer"), ("three", "w2")):
            terminal.type(f"{message}\n")
            terminal.read_until(shown)
            terminal.read_until("> ")
        assert len(server.bodies[-1]["messages"]) == 1
        terminal.type("/what\n")
        terminal.read_until("The commands are /clear and /exit.")
        terminal.type("/exit\n")
        assert terminal.process.wait(timeout=60) == 0


def test_a_completion(remote: RunQuire, server: FakeServer) -> None:
    done = remote("complete", "Once upon", "-n", 2)
    assert (done.returncode, done.stdout) == (0, "Once upon w0 w1\n")
    assert "[2 tokens, " in done.stderr
    assert server.bodies[-1]["prompt"] == "Once upon"
    assert remote("complete", "-q", "-n", 1, stdin="piped\n").stdout == "piped w0\n"


def test_an_error_does_not_run_on_behind_the_text(remote: RunQuire, server: FakeServer) -> None:
    server.plan = ["refuse", "cut"]
    refused, cut = remote("complete", "Once upon"), remote("complete", "Once upon", "-n", 9)
    assert (refused.returncode, refused.stdout) == (1, "Once upon\n")
    assert cut.returncode == 1
    assert cut.stdout.startswith("Once upon w0")
    assert cut.stdout.endswith("\n")
    server.plan = ["refuse", "cut"]
    chat = remote("chat", "-n", 9, stdin="one\ntwo\n")
    assert chat.stdout.startswith(" w0")
    assert chat.stdout.count("\n") == 1


def test_who_is_to_type_the_prompt_is_told(server: FakeServer) -> None:
    with on_terminal(server, "complete", "-n", "1") as terminal:
        terminal.read_until("Type the prompt; Ctrl-D")
        terminal.type("typed\n\x04")
        terminal.read_until("typed w0")


def test_an_empty_prompt_is_not_sent(remote: RunQuire, server: FakeServer) -> None:
    for words in ((), ("",)):
        done = remote("complete", *words)
        assert done.returncode == 1
        assert "The prompt is empty" in done.stderr
    assert server.bodies == []


def line(custom_id: str) -> str:
    body = {"prompt": custom_id, "max_tokens": 1}
    request = {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": body}
    return json.dumps(request) + "\n"


@pytest.mark.parametrize("source", ["-", "/dev/stdin"])
def test_a_batch_comes_through_a_pipe(remote: RunQuire, server: FakeServer, tmp_path: Path, source: str) -> None:
    output = tmp_path / "out.jsonl"
    server.plan = ["refuse"]
    flags = ["-i", source, "-o", output, "--max-concurrency", 1]
    done = remote("run-batch", *flags, stdin=line("a") + line("b") + line("c"))
    assert done.returncode == 0, done.stderr
    assert "2 answered, 1 failed, 0 done before." in done.stderr
    assert "error: the first of 1 that failed: a: the server answered 400: this is refused" in done.stderr
    assert [json.loads(record)["custom_id"] for record in output.read_text().splitlines()] == ["a", "b", "c"]


def test_a_batch_that_lost_requests_on_its_way_has_failed(
    server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text(line("a") + line("b"))

    def counted_before_it_was_cut(path: Path, done: set[str]) -> int:
        count = batch.count_requests(path, done)
        source.write_text(line("a"))
        return count

    monkeypatch.setattr("quire.cli.run_batch.count_requests", counted_before_it_was_cut)
    words = ["run-batch", "-q", "-i", str(source), "-o", str(tmp_path / "out.jsonl"), "--url", server.url]
    assert main([*words, "--api-key", "secret"]) == 1
    assert f"1 of 2 requests were not asked, for {source} changed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--url", "nowhere"), "A server is named like"),
        (("--url", "http://127.0.0.1:9"), "No server answers"),
        (("--api-key", "wrong"), "add --api-key"),
        (("--model", "other"), "serves fake, not other"),
    ],
)
def test_errors_are_one_line(remote: RunQuire, words: tuple[str, ...], message: str) -> None:
    done = remote("complete", "x", *words)
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "stdin"),
    [
        (["complete", b"a\xff"], b""),
        (["complete"], b"a\xff"),
        (["chat"], b"a\xff\n"),
        (["chat", "--system", b"\xff"], b"a\n"),
        (["complete", "a", "--temperature", "nan"], b""),
    ],
)
@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_what_cannot_be_sent_is_one_line(
    server: FakeServer, words: list[str | bytes], stdin: bytes, errors: str
) -> None:
    """In a locale such as en_US.UTF-8 the standard streams are strict; in C.UTF-8 they let everything pass."""
    environment = {**ENVIRONMENT, "PYTHONIOENCODING": f"utf-8:{errors}"}
    command = [QUIRE, *words, "--url", server.url, "--api-key", "secret"]
    done = subprocess.run(command, input=stdin, capture_output=True, env=environment, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith(b"error: ")
    assert done.stderr.count(b"\n") == 1
    decoded_strictly = errors == "strict" and b"\xff" in stdin
    of_text = b"give it as UTF-8" if decoded_strictly else b"half of a surrogate pair"
    assert (b"not JSON compliant" if "nan" in words else of_text) in done.stderr
    assert server.bodies == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["chat", *AWAY, "--dtype", "float32", "--backend", "torch"], "computes; leave out --dtype, --backend."),
        (["chat", *AWAY, "-m", "fake"], "No server answers"),
        (["chat", "--api-key", "secret"], "--api-key is for the server that --url names"),
        (["run-batch", *BATCH, *AWAY, "-m", "smollm2", "--num-threads", "1"], "leave out --model, --num-threads."),
        (["run-batch", *BATCH, "--api-key", "secret"], "--api-key is for the server that --url names"),
    ],
)
def test_flags_of_who_does_not_compute_are_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 1
    assert message in capsys.readouterr().err


def test_ctrl_c_stops_the_answer_and_not_the_program(server: FakeServer) -> None:
    server.gap_s = 0.01
    with chat_on_terminal(server, "-n", "10000") as terminal:
        terminal.type("go on\n")
        terminal.read_until("w3")
        terminal.ctrl_c()
        terminal.read_until("(stopped)")
        terminal.read_until("> ")
        wait_for(lambda: server.num_closed == 1, "the server's hearing that nobody listens")
        terminal.type("/exit\n")
        assert terminal.process.wait(timeout=60) == 0
