"""How an engine is described to the orchestrator."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

SMOLLM2, GEMMA = "smollm2", "gemma3-270m"
EXACT_ACTIVATIONS, INT8_ACTIVATIONS = 0.005, 0.01
"""How far a perplexity may be from float32's, as a share of it: more where activations or KV are rounded to 8 bits."""


class InstallError(Exception):
    """An engine or its weights could not be made ready; the message is one line."""


@dataclass(frozen=True, slots=True)
class Variant:
    """An engine at one precision. `bits` is its class (32, 16, 8 or 4); `weights` names a form of the weights (see
    convert.py); `cases` are the letters of those it can run; `options` reach the worker's `load`, together with
    `running_options` where the start is not what is measured; `models` are those its weights are made for. A variant held to an
    `instruction_set` is measured only where that is asked for. Where its perplexity is further from float32's than
    `max_perplexity_change`, its speed does not count."""

    name: str
    bits: int
    weights: str
    cases: str = "abcde"
    options: Mapping[str, Any] = field(default_factory=dict)
    running_options: Mapping[str, Any] = field(default_factory=dict)
    models: tuple[str, ...] = (SMOLLM2,)
    instruction_set: str | None = None
    max_perplexity_change: float = EXACT_ACTIVATIONS

    @property
    def running(self) -> Variant:
        """As it is set where its start is not what is measured."""
        return replace(self, options={**self.options, **self.running_options})


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment below the cache folder, and the log of what was done to it."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def log(self) -> Path:
        return self.folder / "install.log"

    def pip(self, *arguments: str, env: Mapping[str, str] | None = None) -> None:
        self.run([str(self.python), "-m", "pip", *arguments], env=env)

    def run(self, command: list[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> None:
        """Raises InstallError with the last telling line of the output."""
        with self.log.open("ab") as log:
            log.write(f"\n$ {' '.join(command)}\n".encode())
            log.flush()
            done = subprocess.run(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env={**os.environ, **(env or {})}, cwd=cwd
            )
        if done.returncode != 0:
            raise InstallError(f"{Path(command[0]).name} exited with {done.returncode}: {last_error(self.log)}")


@dataclass(frozen=True, slots=True)
class Server:
    """A command that serves one variant over HTTP, and the path that answers 200 once it is ready."""

    command: list[str]
    ready_path: str = "/health"


@dataclass(frozen=True, slots=True)
class Peer:
    """`install` fills a fresh environment and says what it did in a line; None means quire's own interpreter is used.
    `process_env` gives the variables its processes need. `serve` makes the command of its HTTP server on a port."""

    name: str
    variants: tuple[Variant, ...]
    install: Callable[[Environment], str] | None = None
    process_env: Callable[[Environment], dict[str, str]] = lambda _: {}
    serve: Callable[[Environment, Variant, Path, int], Server] | None = None

    @property
    def module(self) -> str:
        return f"benchmarks.peers.engines.{self.name}"

    def python(self, environment: Environment) -> str:
        return sys.executable if self.install is None else str(environment.python)


def last_error(log: Path) -> str:
    """The last line that names an error, or else the last line."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    telling = [line for line in lines[-200:] if "error" in line.lower()]
    return (telling or lines or ["it wrote nothing"])[-1][:300]
