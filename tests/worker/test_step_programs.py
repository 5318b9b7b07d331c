"""What cannot be recorded goes through Python, and changes nothing else."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from quire import LLM, SamplingParams
from quire.core.native import has_native_module
from quire.kernels import native
from quire.models.decoder import Decoder

pytestmark = pytest.mark.skipif(not has_native_module(), reason="the native kernels were not built")

PARAMS = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, logprobs=2)
PROMPTS = [[1, 2, 3] * 9, [4], [5, 6] * 20]


def answers(model: Path) -> list[object]:
    with LLM(str(model), backend="cpu", dtype="float32", num_blocks=64) as llm:
        outputs = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
    return [(output.outputs[0].token_ids, output.outputs[0].logprobs) for output in outputs]


def test_a_model_that_does_what_has_no_kernel(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = answers(tiny_llama)
    forward = Decoder.forward

    def with_rows_by_number(*arguments: object) -> object:
        hidden = forward(*arguments)  # type: ignore[arg-type]
        return hidden[np.arange(hidden.shape[0])]

    monkeypatch.setattr(Decoder, "forward", with_rows_by_number)
    monkeypatch.setattr(native, "run", lambda *_: pytest.fail("a program ran"))
    with caplog.at_level(logging.INFO, "quire"):
        assert answers(tiny_llama) == expected
    said = [record.getMessage() for record in caplog.records if "goes through Python" in record.getMessage()]
    assert said == ["Every step goes through Python: rows[numbers], unlike index_select, has no native kernel."]
