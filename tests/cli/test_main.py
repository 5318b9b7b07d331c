"""What every command has in common: help, exit codes, errors of one line, and clean ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from tests.cli.conftest import ENVIRONMENT, QUIRE, RunQuire
from tests.server.own_server import own_server

from quire.cli.main import COMMANDS


def test_help_lists_every_command_and_is_short(quire: RunQuire) -> None:
    result = quire("--help")
    assert result.returncode == 0
    assert all(f"  {name} " in result.stdout for name in COMMANDS)
    assert "examples:" in result.stdout
    assert len(result.stdout.splitlines()) < 40


@pytest.mark.parametrize("command", [*COMMANDS, "bench latency", "bench throughput"])
def test_help_of_each_command(quire: RunQuire, command: str) -> None:
    result = quire(*command.split(), "--help")
    assert result.returncode == 0
    assert result.stdout.startswith(f"usage: quire {command}")


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from quire.cli.main import make_parser; make_parser(['--help']).format_help();"
        "print([m for m in ('torch', 'numpy', 'tokenizers', 'rich', 'quire.engine') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "arguments", [[], ["fly"], ["plan", "--fast"], ["generate", "x", "--max-tokens", "many"], ["bench"]]
)
def test_wrong_usage_is_one_line_and_exit_code_2(quire: RunQuire, arguments: list[str]) -> None:
    result = quire(*arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", [["plan", "--fast"], ["plan", "--context", "many"]])
def test_wrong_usage_of_a_command_names_its_help(quire: RunQuire, arguments: list[str]) -> None:
    assert "(see quire plan --help)" in quire(*arguments).stderr


def test_an_error_is_one_line_and_exit_code_1(quire: RunQuire) -> None:
    result = quire("generate", "x", "--model", "no-such-model")
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert "no-such-model" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(("flags", "told"), [([], "told\n"), (["-q"], "")])
def test_the_hubs_warnings_are_told_once_and_not_to_who_wants_quiet(flags: list[str], told: str) -> None:
    code = (
        f"from quire.cli.main import main; main([*{flags!r}, 'pull', '--list']);"
        "from huggingface_hub.utils import logging; logging.get_logger('huggingface_hub.file_download').warning('told')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT, timeout=60)
    assert (done.returncode, done.stderr) == (0, told)


@pytest.mark.parametrize("arguments", [["--debug", "plan", "no-such-model"], ["plan", "no-such-model", "--debug"]])
def test_debug_shows_the_traceback(quire: RunQuire, arguments: list[str]) -> None:
    result = quire(*arguments)
    assert result.returncode == 1
    assert "Traceback" in result.stderr


def test_a_reader_that_leaves_is_no_error() -> None:
    with subprocess.Popen(
        [QUIRE, "collect-env"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(timeout=60) == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_output_that_is_not_taken_is_one_line_and_exit_code_1() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [QUIRE, "collect-env"], stdout=full, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, timeout=60
        )
    assert done.returncode == 1
    assert done.stderr == "error: The system refused what this command writes or reads: No space left on device.\n"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
def test_streams_that_are_closed_are_done_without(closed: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" pull --list {closed}', QUIRE],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("closed", [1, 2])
def test_what_a_command_starts_has_streams_too(closed: int) -> None:
    code = (
        "import subprocess; from quire.cli.main import main; main(['pull', '--list']);"
        f"raise SystemExit(subprocess.call(['sh', '-c', 'echo told >&{closed}']))"
    )
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" -c "$1" {closed}>&-', sys.executable, code],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_ctrl_c_ends_a_command_with_130(tiny_llama: Path) -> None:
    """Once it has begun to work; before that, Python itself ends it."""
    with subprocess.Popen(
        [QUIRE, "chat", "--model", str(tiny_llama)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    ) as process:
        assert process.stderr is not None
        while not process.stderr.readline().startswith("KV cache"):
            pass
        while process.poll() is None:
            # Pressed again if nothing happens: Python may miss a signal in the instant before input() waits.
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=10)
        assert process.returncode == 130
        # What it says of itself as it begins may come before the signal.
        assert all(line.startswith("Native kernels") for line in process.stderr)


def test_a_folder_for_temporary_files_of_too_long_a_path_is_one_line(tmp_path: Path, tiny_llama: Path) -> None:
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    process = subprocess.run(
        [QUIRE, "serve", str(tiny_llama), "--port", "0"],
        capture_output=True,
        text=True,
        timeout=120,
        env={**ENVIRONMENT, "TMPDIR": str(folder)},
    )
    assert process.returncode == 1
    assert process.stderr.count("\n") == 1
    assert "set TMPDIR to a shorter one" in process.stderr
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("make", [lambda path: path.write_bytes(b"\xff\xfe"), os.mkfifo, lambda path: None])
def test_a_chat_template_that_cannot_be_read_is_one_line(
    quire: RunQuire, tmp_path: Path, tiny_llama: Path, make: Callable[[Path], object]
) -> None:
    path = tmp_path / "template.jinja"
    make(path)
    result = quire("serve", tiny_llama, "--port", 0, "--chat-template", path)
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert "template in UTF-8" in result.stderr


def test_a_quiet_server_tells_the_port_that_the_system_chose(tiny_llama: Path) -> None:
    with own_server(str(tiny_llama), "--quiet") as server:
        assert server.log().count("\n") == 1, "and nothing else"
