"""The benchmarks are run by hand and seldom: a change elsewhere must not leave one that no longer starts."""

from __future__ import annotations

import argparse
import re
import shlex
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
NOT_RUN = {"oracle", "script"}
"""What benchmarks import and nobody runs."""


@pytest.mark.parametrize("name", sorted({path.stem for path in BENCHMARKS.glob("*.py")} - NOT_RUN))
def test_each_benchmark_begins(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", [name, "--help"])
    with pytest.raises(SystemExit, match="0"):
        import_module(f"benchmarks.{name}").main()


COMMANDS = sorted(set(re.findall(r"`python -m benchmarks\.([^`]+)`", (BENCHMARKS.parent / "README.md").read_text())))


class Parsed(Exception):
    pass


@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_of_the_readme_are_complete(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, *words = shlex.split(command)
    parse = argparse.ArgumentParser.parse_args

    def parse_alone(parser: argparse.ArgumentParser, *arguments: Any) -> None:
        parse(parser, *arguments)
        raise Parsed

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_alone)
    monkeypatch.setattr("sys.argv", [name, *words])
    with pytest.raises(Parsed):
        import_module(f"benchmarks.{name}.__main__" if (BENCHMARKS / name).is_dir() else f"benchmarks.{name}").main()
