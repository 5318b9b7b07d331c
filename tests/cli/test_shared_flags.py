"""Counts and times are checked where flags are read: wrong usage, told in one line."""

from __future__ import annotations

import pytest

from quire.cli.main import main


@pytest.mark.parametrize(
    ("command", "flag"),
    [
        (["bench", "serve"], "--num-prompts"),
        (["bench", "throughput"], "--repeats"),
        (["bench", "startup"], "--repeats"),
        (["run-batch", "-i", "in", "-o", "out"], "--max-concurrency"),
        (["plan"], "--concurrency"),
    ],
)
@pytest.mark.parametrize("value", ["0", "-1", "1.5", "many"])
def test_counts(command: list[str], flag: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([*command, f"{flag}={value}"])
    assert f"must be a whole number of at least 1, got {value}" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["bench", "serve"], ["run-batch", "-i", "in", "-o", "out"]])
@pytest.mark.parametrize("value", ["0", "-1", "nan", "soon"])
def test_times(command: list[str], value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([*command, f"--timeout={value}"])
    assert f"argument --timeout: must be seconds above 0, got {value}" in capsys.readouterr().err
