"""Every family against transformers: the same checkpoint, the same tokens, the same logits at every position."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
import torch
from tests.models.paged_run import all_logits, load
from tests.models.random_checkpoints import CONFIGS, VOCAB_SIZE, oracle_logits, save_checkpoint

from quire.attention.select import select_backend
from quire.checkpoint.checkpoint import open_checkpoint
from quire.checkpoint.model_config import WeightShape
from quire.core.native import has_native_module
from quire.core.quantization import ROUNDINGS
from quire.kernels.dtype import DType
from quire.kernels.native_linear import PackedWeight
from quire.kernels.panels import QuantizedPanels
from quire.kernels.select import select_ops
from quire.models.registry import DECODERS, load_model
from quire.plan.weights import unrounded_weights
from quire.quantization.few_bits import Rounded, Segment
from quire.quantization.method import StoredWeight
from quire.quantization.select import METHODS

# Decoding, chunks that end inside and at the border of blocks and windows, and a prompt in one piece.
LENGTHS_AND_CHUNKS = [(5, 1), (40, 7), (33, 8), (50, 64)]


def random_rows() -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(3, VOCAB_SIZE, (length,), generator=generator).tolist() for length, _ in LENGTHS_AND_CHUNKS]


NATIVE = pytest.param(
    "cpu", marks=pytest.mark.skipif(not has_native_module(), reason="the native kernels were not built")
)


@pytest.mark.parametrize("backend", ["reference", "torch", NATIVE])
@pytest.mark.parametrize("name", CONFIGS)
def test_logits_match_transformers(name: str, backend: str, tmp_path: Path) -> None:
    oracle = save_checkpoint(name, tmp_path)
    rows = random_rows()
    tensors = select_ops(backend).tensors if backend == "cpu" else None
    found = all_logits(
        load(tmp_path, backend=backend), rows, [chunk for _, chunk in LENGTHS_AND_CHUNKS], tensors=tensors
    )
    for row, logits in zip(rows, found, strict=True):
        torch.testing.assert_close(logits, oracle_logits(oracle, row), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("backend", ["reference", "torch", NATIVE])
@pytest.mark.parametrize("name", CONFIGS)
def test_last_tokens_alone_have_the_same_logits(name: str, backend: str, tmp_path: Path) -> None:
    save_checkpoint(name, tmp_path)
    rows, chunk_sizes = random_rows(), [chunk for _, chunk in LENGTHS_AND_CHUNKS]
    tensors = select_ops(backend).tensors if backend == "cpu" else None
    model = load(tmp_path, backend=backend)
    every = all_logits(model, rows, chunk_sizes, tensors=tensors)
    last = all_logits(model, rows, chunk_sizes, tensors=tensors, last_tokens=True)
    tolerance = 1e-4 if backend == "torch" else 0.0
    for logits, found, chunk in zip(every, last, chunk_sizes, strict=True):
        ends = [min(start + chunk, len(logits)) - 1 for start in range(0, len(logits), chunk)]
        torch.testing.assert_close(found, logits[ends], rtol=tolerance, atol=tolerance)


@pytest.mark.skipif(not has_native_module(), reason="the native kernels were not built")
@pytest.mark.parametrize("name", CONFIGS)
def test_the_weights_that_rounding_leaves_are_those_the_config_counts(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_checkpoint(name, tmp_path)
    checkpoint = open_checkpoint(str(tmp_path))
    found: Counter[WeightShape] = Counter()
    left: Counter[WeightShape] = Counter()

    class Counted(Rounded):
        def load(self, parts: Sequence[StoredWeight], dtype: DType) -> list[Segment]:
            weight = super().load(parts, dtype)
            shape = WeightShape(sum(part.num_outputs for part in parts), parts[0].num_inputs)
            self.count(shape, all(isinstance(segment.weight, QuantizedPanels) for segment in weight))
            return weight

        def load_table_weight(self, part: StoredWeight, dtype: DType) -> PackedWeight:
            weight = super().load_table_weight(part, dtype)
            shape = WeightShape(part.num_outputs, part.num_inputs, is_table=True)
            self.count(shape, isinstance(weight, QuantizedPanels))
            return weight

        def count(self, shape: WeightShape, rounded: bool) -> None:
            found[shape] += 1
            left[shape] += int(not rounded)

    monkeypatch.setitem(METHODS, "int8", partial(Counted, rounding=ROUNDINGS["int8"]))
    attention = select_backend("cpu", DType.FLOAT32, checkpoint.config)
    load_model(DECODERS, checkpoint, DType.FLOAT32, select_ops("cpu"), attention, "int8")
    assert found == checkpoint.config.weight_shapes()
    assert +left == unrounded_weights(checkpoint.config, "int8")


@pytest.mark.parametrize("name", CONFIGS)
def test_num_parameters_is_exact(name: str, tmp_path: Path) -> None:
    oracle = save_checkpoint(name, tmp_path)
    # parameters() names a shared tensor once.
    assert open_checkpoint(str(tmp_path)).config.num_parameters() == sum(p.numel() for p in oracle.parameters())
