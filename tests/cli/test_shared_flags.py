"""Counts and times are checked where flags are read: wrong usage, told in one line."""

from __future__ import annotations

from pathlib import Path

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


def test_a_count_of_many_digits(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["plan", f"--concurrency=1{'0' * 400}"])
    assert "argument --concurrency: must have at most 18 digits, got 401" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["bench", "serve"], ["run-batch", "-i", "in", "-o", "out"]])
@pytest.mark.parametrize("value", ["0", "-1", "nan", "soon"])
def test_times(command: list[str], value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([*command, f"--timeout={value}"])
    assert f"argument --timeout: must be seconds above 0, got {value}" in capsys.readouterr().err


BENCHES = ["serve", "startup", "throughput", "latency"]


@pytest.mark.parametrize(
    ("kind", "flag"),
    [*((kind, "--output") for kind in BENCHES), *((kind, "--plot") for kind in BENCHES if kind != "startup")],
)
def test_files_that_cannot_be_written_are_told_before_the_work(
    kind: str, flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "missing" / "x.png", tmp_path / "file" / "x.png"):
        with pytest.raises(SystemExit, match="2"):
            main(["bench", kind, flag, str(path)])
        assert f"argument {flag}: must be a file that can be written" in capsys.readouterr().err
    assert [found.name for found in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("kind", "flag"), [("serve", "--dataset-path"), ("throughput", "--dataset"), ("latency", "--dataset")]
)
def test_datasets_are_looked_for_before_the_work(
    kind: str, flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(SystemExit, match="2"):
            main(["bench", kind, flag, str(path)])
        assert f"argument {flag}: must be a file that can be read, got {path}" in capsys.readouterr().err
