"""What cannot be recorded goes through Python, and changes nothing else."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.inside import runner_of

from quire import LLM, SamplingParams
from quire.config import MAX_RECORDED_TOKENS
from quire.core.native import has_native_module
from quire.kernels import native_module
from quire.models.decoder import Decoder
from quire.worker.step_programs import MAX_ROWS_TO_LOGITS

pytestmark = pytest.mark.skipif(not has_native_module(), reason="the native kernels were not built")

PARAMS = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, logprobs=2)
GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
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
    monkeypatch.setattr(native_module, "run", lambda *_: pytest.fail("a program ran"))
    with caplog.at_level(logging.INFO, "quire"):
        assert answers(tiny_llama) == expected
    said = [record.getMessage() for record in caplog.records if "goes through Python" in record.getMessage()]
    assert said == ["Every step goes through Python: rows[numbers], unlike index_select, has no native kernel."]


def test_as_many_sequences_as_a_program_has_tokens(tiny_llama: Path) -> None:
    """Rows and tokens of a step are still told apart: of prompts all tokens are computed."""
    found = []
    for max_num_seqs in (4, MAX_RECORDED_TOKENS):
        with LLM(str(tiny_llama), backend="cpu", dtype="float32", num_blocks=64, max_num_seqs=max_num_seqs) as llm:
            outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False)  # type: ignore[arg-type]
            assert runner_of(llm)._programs._last_tokens
        found.append([output.outputs[0].token_ids for output in outputs])
    assert found[0] == found[1]


def test_softcapped_logits_are_all_computed(tiny_gemma: Path, tmp_path: Path) -> None:
    """Two that differ may become equal: which token is the most likely is not to be told before."""
    model = tmp_path / "softcapped"
    shutil.copytree(tiny_gemma, model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"final_logit_softcapping": 3.0}))
    with LLM(str(model), backend="cpu", dtype="float32", num_blocks=64) as llm:
        found = [
            [output.outputs[0].token_ids for output in llm.generate(PROMPTS, params, use_tqdm=False)]  # type: ignore[arg-type]
            for params in (PARAMS, GREEDY)
        ]
    assert found[0] == found[1]


def test_steps_of_many_rows(tiny_llama: Path) -> None:
    """One more than a program for single tokens has, and as many as a program has tokens."""
    params = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)
    sizes = {"num_blocks": 2 * MAX_RECORDED_TOKENS, "max_num_seqs": MAX_RECORDED_TOKENS}
    with LLM(str(tiny_llama), backend="cpu", dtype="float32", **sizes) as llm:  # type: ignore[arg-type]
        alone, *together = (
            output.outputs[0].token_ids
            for count in (1, MAX_ROWS_TO_LOGITS + 1, MAX_RECORDED_TOKENS)
            for output in llm.generate([[4]] * count, params, use_tqdm=False)  # type: ignore[arg-type]
        )
    assert together == [alone] * (MAX_ROWS_TO_LOGITS + 1 + MAX_RECORDED_TOKENS)
