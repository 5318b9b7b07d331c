"""Bytes of weights, of those too that few bits were asked for and that stay floats."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quire.checkpoint.model_config import ModelConfig, WeightShape
from quire.plan.weights import unrounded_weights, weight_bytes

NORMS = 61 * 576
TABLE, DOWN = 49152 * 576, 30 * 576 * 1536
"""Values of SmolLM2's."""


@pytest.mark.parametrize(
    ("quantization", "bytes_per_weight"),
    [("int8-g32", 34 / 32), ("int8-g64", 66 / 64), ("int4", 20 / 32), ("int4-g64", 36 / 64)],
)
def test_tables_have_8_bits_layers_what_was_asked_and_norms_stay_floats(
    smollm2_config: ModelConfig, quantization: str, bytes_per_weight: float
) -> None:
    layers = smollm2_config.num_parameters() - TABLE - NORMS
    rounded = TABLE * (1 + 2 / 576) + layers * bytes_per_weight
    found = weight_bytes(smollm2_config, quantization, "bfloat16")  # type: ignore[arg-type]
    assert found == round(rounded + 2 * NORMS)


def test_groups_are_as_large_as_rows_allow(smollm2_config: ModelConfig) -> None:
    """576 inputs are 6 groups of 96."""
    layers = smollm2_config.num_parameters() - TABLE - NORMS
    rounded = TABLE * (1 + 2 / 576) + (layers - DOWN) * (1 + 2 / 96) + DOWN * (1 + 2 / 128)
    assert weight_bytes(smollm2_config, "int8-g128", "bfloat16") == round(rounded + 2 * NORMS)


def test_rows_that_are_no_whole_groups_stay_floats(smollm2_config: ModelConfig) -> None:
    model = replace(smollm2_config, intermediate_size=1500)
    assert unrounded_weights(model, "int8") == {WeightShape(576, 1500): 30}
    assert unrounded_weights(model, "stored") == {}
    down = 30 * 576 * 1500
    layers = model.num_parameters() - TABLE - NORMS - down
    rounded = (TABLE + layers) * (1 + 2 / 576)
    assert weight_bytes(model, "int8", "float32") == round(rounded + 4 * (NORMS + down))


def test_what_a_file_has_no_codes_of_takes_the_size_of_the_dtype(smollm2_config: ModelConfig) -> None:
    model = replace(smollm2_config, quantized_bytes=1000, num_float_values=10)
    assert [weight_bytes(model, "stored", dtype) for dtype in ("bfloat16", "float32")] == [1020, 1040]
