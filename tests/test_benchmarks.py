"""The benchmarks are run by hand and seldom: a change elsewhere must not leave one that no longer starts."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
NOT_RUN = {"oracle", "script"}
"""What benchmarks import and nobody runs."""


@pytest.mark.parametrize("name", sorted({path.stem for path in BENCHMARKS.glob("*.py")} - NOT_RUN))
def test_each_benchmark_begins(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", [name, "--help"])
    with pytest.raises(SystemExit, match="0"):
        import_module(f"benchmarks.{name}").main()
