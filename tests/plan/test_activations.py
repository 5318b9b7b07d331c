"""What steps need besides weights and KV, against what is made."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from quire.checkpoint.model_config import ModelConfig
from quire.kernels.native_sketch import FINE, can_sketch, empty_sketch
from quire.plan.activations import ROWS_SEARCHED_FOR, search_bytes
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
