"""What steps need besides weights and KV, against what is made."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.inside import runner_of

from quire import LLM, SamplingParams
from quire.checkpoint.model_config import ModelConfig
from quire.config import MAX_RECORDED_TOKENS
from quire.core.kv_layout import BYTES_PER_ELEMENT
from quire.core.native import has_native_module
from quire.kernels.native_module import module
from quire.kernels.native_sketch import FINE, can_sketch, empty_sketch
from quire.plan.native_activations import ROWS_SEARCHED_FOR, native_activation_bytes, search_bytes
from quire.worker.step_programs import MAX_ROWS_TO_SEARCH


def test_a_search_takes_what_its_sketch_takes(smollm2_config: ModelConfig) -> None:
    sketch = empty_sketch(smollm2_config.vocab_size, np.arange(FINE), smollm2_config.hidden_size)
    made = sum(array.stored.nbytes for array in (sketch.weight.panels, sketch.lacks, sketch.sizes))
    logits = 2 * 4 * MAX_ROWS_TO_SEARCH * smollm2_config.vocab_size
    assert ROWS_SEARCHED_FOR == MAX_ROWS_TO_SEARCH
    assert made + logits == pytest.approx(search_bytes(smollm2_config), rel=0.01)


@pytest.mark.parametrize("width", [32, 64, 100, 576])
def test_what_has_no_sketch_needs_none(smollm2_config: ModelConfig, width: int) -> None:
    narrow = replace(smollm2_config, hidden_size=width)
    assert (search_bytes(narrow) > 0) is can_sketch(width)
    assert search_bytes(replace(narrow, final_logit_softcap=30.0)) == 0


@pytest.mark.skipif(not has_native_module(), reason="the native kernels were not built")
@pytest.mark.parametrize(("hidden", "inner"), [(512, 4160), (512, 4096), (4224, 4160)])
def test_sums_that_are_kept_between_stretches_are_counted(smollm2_config: ModelConfig, hidden: int, inner: int) -> None:
    kept = module().bytes_of_kept_sums(num_rows=64, row_bytes=2 * inner, num_inputs=inner, num_outputs=hidden)
    narrow, wide = (replace(smollm2_config, hidden_size=hidden, intermediate_size=width) for width in (64, inner))
    planned = [
        native_activation_bytes(model, bytes_per_element=2, num_tokens=64, num_rows=1) for model in (narrow, wide)
    ]
    floats = 64 * 2 * (3 * inner + inner - _values_of_attention(narrow) - 64)
    assert planned[1] - planned[0] == floats + kept


def _values_of_attention(model: ModelConfig) -> int:
    return 2 * model.head_dim * (model.num_heads + model.num_kv_heads)


@pytest.mark.real
@pytest.mark.skipif(not has_native_module(), reason="the native kernels were not built")
@pytest.mark.parametrize("model_name", ["smollm2", "gemma3-270m"])
@pytest.mark.parametrize(("dtype", "quantization"), [("float32", "none"), ("bfloat16", "none"), ("bfloat16", "stored")])
def test_programs_take_about_what_is_planned(model_name: str, dtype: str, quantization: str) -> None:
    """They are laid out for MAX_RECORDED_TOKENS tokens; what of it is for processors that lack an instruction stays untouched."""
    max_num_seqs = 8
    with LLM(
        model_name,
        dtype=dtype,
        quantization=quantization,
        max_num_seqs=max_num_seqs,
        max_model_len=1024,
        num_blocks=600,
    ) as llm:
        for temperature in (0.0, 1.0):
            params = SamplingParams(temperature=temperature, max_tokens=3, ignore_eos=True)
            llm.generate([[5, 6, 7]] * max_num_seqs, params, use_tqdm=False)
        runner = runner_of(llm)
        laid_out, model = runner._programs._arena.num_bytes, runner._model.config
    planned = native_activation_bytes(
        model, bytes_per_element=BYTES_PER_ELEMENT[dtype], num_tokens=MAX_RECORDED_TOKENS, num_rows=max_num_seqs
    ) - search_bytes(model)
    assert planned < 1.1 * laid_out
    assert laid_out < 1.6 * planned
