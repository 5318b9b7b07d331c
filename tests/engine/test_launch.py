"""What a start says."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from quire import LLM


def test_what_is_left_out_of_the_files_is_said_once(
    tiny_llama: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = Path(shutil.copytree(tiny_llama, tmp_path / "model"))
    (model / "generation_config.json").write_text(json.dumps({"temperature": 0.6}))
    with caplog.at_level("INFO", "quire"), LLM(str(model)):
        (line,) = (line for line in caplog.messages if "temperature" in line)
    assert line.startswith(f"{model / 'generation_config.json'}: temperature 0.6 left unused")
