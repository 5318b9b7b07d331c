"""Loading holds the model in its target dtype and little more: it streams, whatever the file's dtype."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import LlamaConfig, LlamaForCausalLM


def peak_share(reference: Path | str, dtype: str) -> float:
    """Most anonymous memory during loading, over the model's size."""
    command = [sys.executable, "-m", "tests.models.measure_loading", str(reference), dtype]
    measured = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return measured["peak_bytes"] / measured["model_bytes"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_float32_checkpoint(dtype: str, tmp_path: Path) -> None:
    sizes = {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 12, "vocab_size": 8192}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=8))
    model.save_pretrained(tmp_path)
    assert peak_share(tmp_path, dtype) < 1.15


@pytest.mark.real
def test_smollm2_widened(smollm2: str) -> None:
    assert peak_share(smollm2, "float32") < 1.15


@pytest.mark.real
def test_gemma3_as_it_is(gemma3: str) -> None:
    assert peak_share(gemma3, "bfloat16") < 1.15
