"""The installed `quire`, run as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

QUIRE = str(Path(sys.executable).with_name("quire"))
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}

RunQuire = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def quire() -> RunQuire:
    def run(*arguments: object, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [QUIRE, *map(str, arguments)], input=stdin, capture_output=True, text=True, timeout=120, env=ENVIRONMENT
        )

    return run
