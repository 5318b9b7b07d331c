"""OneDNN weights multiply like the plain ones, and are chosen only where the machine multiplies from them."""

from __future__ import annotations

import pytest
import torch
from tests.quantization.stored_weights import FloatWeight

from quire.kernels.reference import ReferenceOps
from quire.kernels.torch_ops import TorchOps, cpu_capabilities, multiplies_natively
from quire.quantization.method import Unquantized
from quire.quantization.onednn import OneDNN
from quire.quantization.select import select_method

DTYPES = [dtype for dtype in (torch.float32, torch.bfloat16) if OneDNN.multiplies(dtype)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_rows", [1, 7, 32, 300])
@pytest.mark.parametrize(("num_outputs", "num_inputs"), [(96, 64), (3072, 576), (65, 33)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_as_unpacked(dtype: torch.dtype, num_rows: int, num_outputs: int, num_inputs: int, with_bias: bool) -> None:
    generator = torch.Generator().manual_seed(num_rows)
    weight = torch.randn(num_outputs, num_inputs, generator=generator).to(dtype)
    bias = torch.randn(num_outputs, generator=generator).to(dtype) if with_bias else None
    # Every second row of a wider matrix: rows need not lie next to each other.
    x = torch.randn(2 * num_rows, num_inputs, generator=generator).to(dtype)[::2]
    method = OneDNN(TorchOps())
    halves = [FloatWeight(part) for part in (weight[:7], weight[7:])]
    y = method.apply(x, method.load(halves, dtype), bias)
    expected = torch.nn.functional.linear(x.double(), weight.double(), None if bias is None else bias.double())
    assert y.dtype == dtype
    assert y.shape == (num_rows, num_outputs)
    # Rounded once to dtype; summed in float32.
    tolerance = {"rtol": 4 * torch.finfo(dtype).eps, "atol": 4 * torch.finfo(torch.float32).eps * num_inputs}
    torch.testing.assert_close(y.double(), expected, **tolerance)


@pytest.mark.parametrize("method", [Unquantized(TorchOps()), *([OneDNN(TorchOps())] if DTYPES else [])])
def test_the_residual_is_added(method: Unquantized) -> None:
    generator = torch.Generator().manual_seed(0)
    weight, x, residual = (torch.randn(*shape, generator=generator) for shape in ((40, 24), (5, 24), (5, 40)))
    loaded = method.load([FloatWeight(weight)], torch.float32)
    expected = residual + method.apply(x, loaded, None)
    assert torch.equal(method.apply(x, loaded, None, residual), expected)


def test_a_dense_tables_most_likely_rows() -> None:
    table = Unquantized(TorchOps()).load_table(FloatWeight(torch.eye(30, 8)), torch.float32)
    token_ids, largest = table.most_likely(torch.eye(8)[[5, 0, 7]] * 3)
    assert token_ids.tolist() == [5, 0, 7]
    assert largest.tolist() == [3, 3, 3]


def test_reference_stays_unpacked() -> None:
    """Its sums have an order of their own (ADR 5)."""
    assert type(select_method(ReferenceOps(), torch.float32, "none")) is Unquantized


def test_dtype_the_machine_lacks_stays_unpacked() -> None:
    assert not multiplies_natively(torch.bfloat16, frozenset())
    native = multiplies_natively(torch.float16, cpu_capabilities())
    assert isinstance(select_method(TorchOps(), torch.float16, "none"), OneDNN) is native


def test_float32_is_packed_with_torch_operators() -> None:
    packs = torch._C._has_mkldnn
    assert isinstance(select_method(TorchOps(), torch.float32, "none"), OneDNN) is packs
