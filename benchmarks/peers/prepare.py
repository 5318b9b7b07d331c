"""Environments of the engines below a cache folder: made and filled only where they are missing."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.contender import Contender, one_line
from benchmarks.peers.convert import Weights
from benchmarks.peers.engines.peer import SMOLLM2, Environment, InstallError, Peer, Variant

INSTALLED = ".installed"
"""Written last, with what `install` said; an environment without it is made again."""


@dataclass(frozen=True, slots=True)
class Setup:
    """Where everything is kept."""

    cache: Path
    model: str

    @property
    def weights(self) -> Weights:
        return Weights(self.model, self.cache / ("weights" if self.model == SMOLLM2 else f"weights-{self.model}"))

    def contender(self, peer: Peer, variant: Variant) -> Contender:
        """Raises InstallError."""
        environment = Environment(self.cache / peer.name)
        how = ensure_installed(peer, environment)
        logs = self.cache / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        weights = self.weights.path(variant.weights, environment)
        return Contender(peer, variant, environment, weights, logs, how_installed=how)

    def contenders(self, wanted: Sequence[tuple[Peer, Variant]]) -> tuple[list[Contender], dict[str, str]]:
        """Those that could be made ready, and the reason for each that could not."""
        ready, absent = [], {}
        for peer, variant in wanted:
            try:
                ready.append(self.contender(peer, variant))
            except Exception as error:
                absent[variant.name] = one_line(error)
                print(f"{variant.name} cannot be measured here: {absent[variant.name]}", flush=True)
        return ready, absent


def ensure_installed(peer: Peer, environment: Environment) -> str:
    """What `install` said of how it was done. Raises InstallError."""
    if peer.install is None:
        return ""
    mark = environment.folder / INSTALLED
    if not mark.exists():
        print(f"installing {peer.name} into its own environment; the log is {environment.log}", flush=True)
        shutil.rmtree(environment.folder, ignore_errors=True)
        environment.folder.parent.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            [sys.executable, "-m", "venv", str(environment.folder)], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise InstallError(f"venv: {(done.stderr or done.stdout).strip()[-200:]}")
        mark.write_text(peer.install(environment))
    return mark.read_text()
