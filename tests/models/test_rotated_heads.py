"""Value heads that are rotated while they are loaded: products stay, and logits in 8 bits are those of float32 but for the rounding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.models.paged_run import all_logits, load
from tests.models.random_checkpoints import CONFIGS, OPT_SIZES, SIZES, VOCAB_SIZE, oracle_logits, save_checkpoint
from tests.quantization.stored_weights import FloatWeight
from transformers import Gemma3TextConfig, LlamaConfig, OPTConfig, PreTrainedConfig, Qwen2Config

from quire.core.native import has_native_module
from quire.core.quantization import Quantization
from quire.kernels.select import select_ops
from quire.models.rotated_heads import HeadRotation, RotatedHeads, can_rotate_heads, rotated_heads, rotations_of_values
from quire.quantization.few_bits import Rounded
from quire.quantization.select import select_packed_method

WIDE = {"hidden_size": 128, "num_attention_heads": 4, "num_hidden_layers": 2}
FAMILIES: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**(SIZES | WIDE | {"intermediate_size": 160})),
    "qwen2": Qwen2Config(**(SIZES | WIDE | {"intermediate_size": 160})),
    "opt": OPTConfig(**(OPT_SIZES | WIDE | {"ffn_dim": 160})),
    "gemma3": Gemma3TextConfig(**(SIZES | WIDE | {"intermediate_size": 160, "head_dim": 64, "sliding_window": 12})),
}


@given(
    head_dim=st.sampled_from([32, 64, 128, 256]),
    num_heads=st.integers(1, 5),
    width=st.integers(1, 20),
    seed=st.integers(0, 99),
)
def test_heads_are_rotated_each_by_itself(head_dim: int, num_heads: int, width: int, seed: int) -> None:
    """Along either axis; the other one only says how many there are."""
    values = np.random.default_rng(seed).standard_normal((num_heads * head_dim, width), np.float32)
    there = rotated_heads(values, head_dim, axis=0)
    np.testing.assert_array_equal(rotated_heads(np.ascontiguousarray(values.T), head_dim, axis=1), there.T)
    np.testing.assert_array_equal(rotated_heads(values[-head_dim:, :1], head_dim, axis=0), there[-head_dim:, :1])
    np.testing.assert_allclose(rotated_heads(there, head_dim, axis=0), values, atol=1e-5)
    np.testing.assert_allclose(np.square(there).sum(0), np.square(values).sum(0), rtol=1e-4)
    one = np.zeros((head_dim, 1), np.float32)
    one[seed % head_dim] = 1
    np.testing.assert_allclose(np.abs(rotated_heads(one, head_dim, axis=0)), head_dim**-0.5, rtol=1e-6)


def test_heads_whose_values_all_meet_can_be_rotated() -> None:
    assert [size for size in range(1, 300) if can_rotate_heads(size)] == [32, 64, 128, 256]


@given(head_dim=st.sampled_from([32, 64, 256]), num_rows=st.integers(1, 300), inputs=st.booleans())
def test_rows_are_the_same_however_many_are_read_at_a_time(head_dim: int, num_rows: int, inputs: bool) -> None:
    values = torch.from_numpy(np.random.default_rng(head_dim).standard_normal((512, 256), np.float32))
    rotated = RotatedHeads(FloatWeight(values), head_dim, inputs)
    parts = list(rotated.floats(num_rows))
    np.testing.assert_array_equal(np.concatenate(parts), next(rotated.floats(512)))
    # Rounded.panels puts them where whole panels end.
    assert all(len(part) % 16 == 0 for part in parts[:-1]) or inputs


def test_values_and_what_is_made_of_them_fit_each_other() -> None:
    """Two heads of values, each seen by three of queries."""
    generator = np.random.default_rng(2)
    values, output = generator.standard_normal((64, 48), np.float32), generator.standard_normal((40, 192), np.float32)
    of_values, of_output = HeadRotation(32, of_inputs=False), HeadRotation(32, of_inputs=True)
    first, second = of_values.weights(
        [FloatWeight(torch.from_numpy(values), "k"), FloatWeight(torch.from_numpy(values), "v")]
    )
    assert not isinstance(first, RotatedHeads)
    (last,) = of_output.weights([FloatWeight(torch.from_numpy(output))])
    assert (second.inputs_rotated, last.inputs_rotated) == (False, True)

    def through(values: np.ndarray, output: np.ndarray) -> np.ndarray:
        """As if each query saw one token alone."""
        repeated = values.reshape(2, 1, 32, -1).repeat(3, 1).reshape(192, -1)
        return output.astype(np.float64) @ repeated

    rotated = through(next(second.floats(64)), next(last.floats(40)))
    np.testing.assert_allclose(rotated, through(values, output), atol=1e-4)
    bias = values[:, 0]
    np.testing.assert_allclose(of_values.bias(bias), next(second.floats(64))[:, 0], atol=1e-6)


@pytest.mark.parametrize(
    ("quantization", "head_dim", "sizes", "rotates"),
    [
        ("int8", 64, (576, 576), True),
        ("int8", 80, (640, 640), False),  # not all of its values could meet
        ("int8", 16, (64, 64), False),
        ("int8", 64, (584, 576), False),  # what the method leaves as floats
        ("int8", 32, (64, 1 << 17), False),
        ("int8-g64", 64, (576, 576), False),
        ("int4", 64, (576, 576), False),
        ("stored", 64, (576, 576), False),
        ("none", 64, (576, 576), False),
    ],
)
def test_who_rotates_them(quantization: Quantization, head_dim: int, sizes: tuple[int, int], rotates: bool) -> None:
    method = select_packed_method(quantization)
    found = rotations_of_values(method, head_dim, *sizes)
    assert (found != (None, None)) == rotates


@pytest.mark.skipif(not has_native_module(), reason="the native kernels were not built")
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_in_8_bits_are_as_near_to_transformers_as_without(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CONFIGS, name, FAMILIES[name])
    oracle = save_checkpoint(name, tmp_path)
    row = torch.randint(3, VOCAB_SIZE, (40,), generator=torch.Generator().manual_seed(1)).tolist()
    expected = oracle_logits(oracle, row)

    def error(*, rotates: bool) -> float:
        model = load(tmp_path, backend="cpu", quantization="int8")
        (output,) = model.layers[0].attention.output.weight  # type: ignore[attr-defined]
        assert output.weight.layout.inputs_rotated == rotates
        (found,) = all_logits(model, [row], [7], tensors=select_ops("cpu").tensors)
        return ((found - expected).norm() / expected.norm()).item()

    rotated = error(rotates=True)
    monkeypatch.setattr(Rounded, "rotates_heads", lambda *_: False)
    assert rotated < 1.3 * error(rotates=False) < 0.3
