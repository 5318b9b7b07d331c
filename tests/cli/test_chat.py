"""The chat loop: piped, and on a terminal where Ctrl-C stops the answer and not the program."""

from __future__ import annotations

import json
import os
import pty
import select
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.conftest import ENVIRONMENT, QUIRE, RunQuire

GREEDY = ("--temperature", "0")


def test_piped_lines_are_messages(quire: RunQuire, tiny_llama: Path) -> None:
    result = quire("chat", "--model", tiny_llama, *GREEDY, "--max-tokens", 4, stdin="one\n\ntwo\n")
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("tok/s, TTFT") == 2
    assert len(result.stdout.splitlines()) >= 2
    assert "> " not in result.stdout


def answers(quire: RunQuire, model: Path, stdin: str, *flags: str, exit_code: int = 0) -> str:
    result = quire("chat", "--model", model, *GREEDY, "--max-tokens", 12, "--quiet", *flags, stdin=stdin)
    assert result.returncode == exit_code, result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def hello_alone(quire: RunQuire, tiny_llama: Path) -> str:
    """The answer to hello at the start of a conversation."""
    return answers(quire, tiny_llama, "hello\n")


def test_the_conversation_is_remembered_until_cleared(quire: RunQuire, tiny_llama: Path, hello_alone: str) -> None:
    shown = answers(quire, tiny_llama, "first\nhello\n/clear\nhello\n")
    assert shown.endswith(hello_alone)
    assert not shown.removesuffix(hello_alone).endswith(hello_alone)


def test_a_piped_line_is_a_message_unless_it_is_a_command(quire: RunQuire, tiny_llama: Path) -> None:
    result = quire(
        "chat", "--model", tiny_llama, "-n", 2, "--temperature", 0, stdin="/etc/hosts?\n/clear\n/exit\nnever\n"
    )
    assert result.returncode == 0
    assert result.stderr.count("tok/s, TTFT") == 1
    assert "Conversation cleared" in result.stderr


def test_a_message_that_does_not_fit_is_refused_and_forgotten(
    quire: RunQuire, tiny_llama: Path, hello_alone: str
) -> None:
    assert answers(quire, tiny_llama, "x" * 600 + "\nhello\n", exit_code=1) == hello_alone


def test_an_answer_that_failed_is_said_so(quire: RunQuire, overflowing_llama: Path) -> None:
    result = quire("chat", "--model", overflowing_llama, "--quiet", stdin="hello\n")
    assert (result.returncode, result.stdout) == (1, "")
    assert "are not finite" in result.stderr


def test_the_system_message_counts(quire: RunQuire, tiny_llama: Path, hello_alone: str) -> None:
    assert answers(quire, tiny_llama, "hello\n", "--system", "Be brief.") != hello_alone


class Terminal:
    """A chat on a pseudo-terminal of its own."""

    def __init__(self, process: subprocess.Popen[bytes], fd: int) -> None:
        self.process = process
        self._fd = fd
        self._unread = ""

    def read_until(self, text: str) -> str:
        """What is shown up to and including `text`."""
        while text not in self._unread:
            self._read_more()
        seen, _, self._unread = self._unread.partition(text)
        return seen + text

    def wait_for_text(self) -> None:
        """Until anything but the ends of lines has been shown."""
        while not self._unread.strip():
            self._read_more()

    def _read_more(self) -> None:
        assert self._can_read(60), f"nothing more is shown after {self._unread!r}"
        self._unread += os.read(self._fd, 1024).decode(errors="replace")

    def _can_read(self, seconds: float) -> bool:
        return bool(select.select([self._fd], [], [], seconds)[0])

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def ctrl_c(self) -> None:
        """Pressed again if nothing happens: Python may miss a signal in the instant before input() waits."""
        while True:
            self.process.send_signal(signal.SIGINT)
            if self._can_read(5):
                return


@pytest.fixture
def endless_llama(tiny_llama: Path, tmp_path: Path) -> Path:
    """No token ends its answers, nor does its context soon: there is time to press Ctrl-C."""
    for file in ("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"):
        shutil.copy(tiny_llama / file, tmp_path)
    for file, key in (("config.json", "eos_token_id"), ("tokenizer_config.json", "eos_token")):
        values = json.loads((tmp_path / file).read_text())
        del values[key]
        if file == "config.json":
            values["max_position_embeddings"] = 32768
        (tmp_path / file).write_text(json.dumps(values))
    return tmp_path


@pytest.fixture
def terminal(endless_llama: Path) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        # More than the terminal holds: the answer cannot end before somebody reads it.
        [QUIRE, "chat", "--model", str(endless_llama), *GREEDY, "--max-tokens", "30000"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**ENVIRONMENT, "TERM": "dumb"},
    )
    os.close(theirs)
    yield Terminal(process, ours)
    process.kill()
    process.wait()
    os.close(ours)


def test_ctrl_c_stops_the_answer_and_not_the_program(terminal: Terminal) -> None:
    terminal.read_until("/exit leaves")
    terminal.read_until("> ")
    terminal.type("tell me a long story\n")
    terminal.read_until("story\r\n")  # the echo
    terminal.wait_for_text()
    terminal.ctrl_c()
    terminal.read_until("(stopped)")
    terminal.read_until("TTFT")
    terminal.type("/clear\n")
    terminal.read_until("Conversation cleared")
    terminal.read_until("> ")
    terminal.ctrl_c()
    terminal.read_until("Ctrl-D) leaves")
    terminal.type("/exit\n")
    assert terminal.process.wait(timeout=60) == 0
