"""The installed `quire`, run as a user runs it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

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


@pytest.fixture(scope="session")
def overflowing_llama(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its weights are finite, and its logits are not."""
    folder = tmp_path_factory.mktemp("overflowing") / "llama"
    shutil.copytree(tiny_llama, folder)
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"] = torch.full_like(weights["lm_head.weight"], 3e38)
    save_file(weights, folder / "model.safetensors")
    return folder
