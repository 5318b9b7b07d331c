"""The plan as people read it."""

from __future__ import annotations

from dataclasses import replace

from quire.checkpoint.model_config import ModelConfig
from quire.plan.memory import Demand, plan_memory
from quire.plan.render import render_plan


def test_weights_that_stay_floats_are_named(smollm2_config: ModelConfig) -> None:
    demand = Demand(dtype="float32", max_model_len=128, native=True, quantization="int8")
    model = replace(smollm2_config, intermediate_size=1500)
    text = render_plan("m", model, plan_memory(model, demand, 2**33), None)
    assert "30 of 121 weights stay float32 with quantization int8" in text
    assert max(map(len, text.splitlines())) <= 80
    assert "stay" not in render_plan("m", smollm2_config, plan_memory(smollm2_config, demand, 2**33), None)
