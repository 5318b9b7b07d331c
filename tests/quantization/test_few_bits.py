"""A layer of tensors of several types, some of them floats, is one layer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.kernels.torch_arrays import as_torch
from tests.quantization.stored_weights import CodedWeight, FloatWeight

from quire.checkpoint.gguf.block_codes import BlockRows
from quire.checkpoint.gguf.block_types import BLOCK_TYPES
from quire.core.native import has_native_module
from quire.kernels.cpu_ops import CpuOps
from quire.kernels.dtype import DType, dtype_of
from quire.kernels.native_linear import DensePanels
from quire.kernels.panels import QuantizedPanels
from quire.quantization.few_bits import Stored
from quire.quantization.panels import PanelsTable
from quire.quantization.select import select_method

pytestmark = pytest.mark.skipif(not has_native_module(), reason="the native kernels were not built")

NUM_INPUTS = 256


def coded(name: str, num_outputs: int, seed: int = 0) -> tuple[CodedWeight, torch.Tensor]:
    rng = np.random.default_rng(seed)
    block_type = next(block_type for block_type in BLOCK_TYPES.values() if block_type.name == name)
    num_blocks = NUM_INPUTS // block_type.num_values
    raw = rng.integers(0, 256, (num_outputs * num_blocks, block_type.num_bytes), dtype=np.uint8)
    blocks = raw.view(block_type.layout).reshape(-1)
    for field in {"d", "m", "dmin"} & set(block_type.layout.names or ()):
        blocks[field] = rng.uniform(-0.01, 0.01, len(blocks)).astype(np.float16)
    rows = BlockRows(name, NUM_INPUTS, raw.reshape(num_outputs, -1), np.arange(num_outputs))
    return CodedWeight(rows), torch.from_numpy(block_type.dequantize(blocks).reshape(num_outputs, -1))


def method() -> Stored:
    found = select_method(CpuOps(), DType.FLOAT32, "stored")
    assert isinstance(found, Stored)
    return found


@pytest.mark.parametrize(
    ("types", "num_segments"),
    [
        (["Q4_1", "Q4_1", "Q4_1"], 1),
        (["Q4_K", "Q4_K", "Q6_K"], 2),
        (["Q4_1", "F32", "Q4_1"], 3),
    ],
)
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_parts_come_out_in_their_order(
    types: list[str], num_segments: int, with_bias: bool, dtype: torch.dtype
) -> None:
    parts, floats = [], []
    for number, name in enumerate(types):
        if name == "F32":
            values = torch.randn(32, NUM_INPUTS) / 10
            parts.append(FloatWeight(values))
        else:
            part, values = coded(name, 160, number)
            parts.append(part)
        floats.append(values)
    layer = method()
    weight = layer.load(parts, dtype_of(dtype))
    assert len(weight) == num_segments
    bias = torch.randn(sum(map(len, floats))).to(dtype) if with_bias else None
    x = torch.randn(5, NUM_INPUTS).to(dtype)
    expected = torch.nn.functional.linear(x.float(), torch.cat(floats), None if bias is None else bias.float())
    found = layer.apply(x, weight, bias).float()
    # Activations of 8 bits: each product is off by at most half a step.
    step = x.abs().max().float() / 127 / 2 * torch.cat(floats).abs().sum(1).max()
    step += expected.abs().max() * torch.finfo(dtype).eps
    assert (found - expected).abs().max() < step
    assert (found - expected).abs().max() > 0


def test_a_table_looks_up_and_projects() -> None:
    part, floats = coded("Q8_0", 77)
    table = method().load_table(part, DType.FLOAT32)
    assert isinstance(table, PanelsTable)
    assert isinstance(table.weight, QuantizedPanels)
    ids = torch.tensor([76, 3, 3])
    assert torch.equal(as_torch(table.rows(ids)), floats[ids])
    x = torch.randn(4, NUM_INPUTS)
    logits = as_torch(table.logits(x))
    assert logits.dtype == torch.float32
    assert torch.corrcoef(torch.stack([logits.flatten(), (x @ floats.T).flatten()]))[0, 1] > 0.999


def test_a_table_of_floats_stays_one() -> None:
    values = torch.randn(40, NUM_INPUTS)
    table = method().load_table(FloatWeight(values), DType.FLOAT32)
    assert isinstance(table, PanelsTable)
    assert isinstance(table.weight, DensePanels)
    assert torch.equal(as_torch(table.rows(torch.arange(40))), values)
