"""What a run of the benchmark found, written as JSON after each turn so that a broken run keeps what it had."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peers.cases import Figures


@dataclass
class Record:
    """`runs` are {case, engine, round, figures}; `skipped` {case, engine, reason}; `absent` engine -> reason."""

    path: Path
    machine: dict[str, Any]
    settings: dict[str, Any]
    limits: dict[str, Any]
    rooflines: dict[str, dict[str, Figures]]
    engines: dict[str, dict[str, Any]] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    quality: dict[str, dict[str, Any]] = field(default_factory=dict)
    runs: list[dict[str, Any]] = field(default_factory=list)
    skipped: list[dict[str, Any]] = field(default_factory=list)

    def add_run(self, case: str, engine: str, number: int, figures: Figures) -> None:
        self.runs.append({"case": case, "engine": engine, "round": number, "figures": figures})

    def skip(self, case: str, engine: str, reason: str) -> None:
        self.skipped.append({"case": case, "engine": engine, "reason": reason})

    def write(self) -> None:
        content = {name: value for name, value in vars(self).items() if name != "path"}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(content, indent=1) + "\n")
