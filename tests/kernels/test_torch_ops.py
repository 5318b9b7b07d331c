"""The fast ops agree with the oracle, to the precision of each dtype."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quire.kernels import torch_ops
from quire.kernels.ops import Ops
from quire.kernels.reference import ReferenceOps
from quire.kernels.select import select_ops
from quire.kernels.torch_ops import TorchOps

REFERENCE = ReferenceOps()
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
DTYPES = st.sampled_from(list(TOLERANCE))
OPS: list[Ops] = [
    TorchOps(capabilities=frozenset()),
    TorchOps(capabilities=frozenset({"avx512_bf16", "avx512_fp16"})),
]
"""Widening weights of half precision, and multiplying in it."""


def draw(*shape: int, seed: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_agree(actual: torch.Tensor, expected: torch.Tensor, scale: float = 1.0) -> None:
    assert actual.dtype is expected.dtype
    tolerance = TOLERANCE[actual.dtype]
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize("ops", OPS, ids=["widening", "native"])
@given(
    num_rows=st.sampled_from([1, 3, 4, 15, 16, 17, 130]),
    shape=st.sampled_from([(576, 960), (37, 53), (1, 1), (576, 2000)]),
    dtype=DTYPES,
    has_bias=st.booleans(),
)
def test_linear(ops, num_rows, shape, dtype, has_bias) -> None:  # type: ignore[no-untyped-def]
    num_features, num_outputs = shape
    x = draw(num_rows, num_features, seed=1, dtype=dtype)
    weight = draw(num_outputs, num_features, seed=2, dtype=dtype)
    bias = draw(num_outputs, seed=3, dtype=dtype) if has_bias else None
    assert_agree(ops.linear(x, weight, bias), REFERENCE.linear(x, weight, bias), scale=num_features**0.5)


def test_widened_weights_are_never_held_whole() -> None:
    """A vocabulary's matrix goes through the buffer in chunks, the last one short."""
    ops = TorchOps(capabilities=frozenset())
    weight = draw(3 * torch_ops.NUM_WIDENED // 64 + 5, 64, seed=1, dtype=torch.bfloat16)
    x = draw(16, 64, seed=2, dtype=torch.bfloat16)
    assert_agree(ops.linear(x, weight, None), REFERENCE.linear(x, weight, None), scale=8.0)
    assert ops._widened.numel() <= torch_ops.NUM_WIDENED


@given(num_rows=st.integers(1, 5), width=st.sampled_from([1, 37, 576]), dtype=DTYPES)
def test_norms_and_activations(num_rows, width, dtype) -> None:  # type: ignore[no-untyped-def]
    ops = OPS[0]
    x, weight, bias = (draw(n, width, seed=n, dtype=dtype) for n in (num_rows, 7, 8))
    before = x.clone()
    assert_agree(ops.rms_norm(x, weight[0], 1e-6), REFERENCE.rms_norm(x, weight[0], 1e-6))
    residual = draw(num_rows, width, seed=9, dtype=dtype)
    expected = REFERENCE.rms_norm(x, weight[0], 1e-6, residual.clone())
    assert_agree(ops.rms_norm(x, weight[0], 1e-6, residual), expected)
    assert_agree(ops.layer_norm(x, weight[0], bias[0], 1e-5), REFERENCE.layer_norm(x, weight[0], bias[0], 1e-5), 4.0)
    both = torch.cat((x, 2 * x), 1)
    for kind in ("silu", "gelu", "gelu_tanh", "relu"):
        assert_agree(ops.activate(x, kind), REFERENCE.activate(x, kind))
        gate, up = both.chunk(2, 1)
        assert_agree(ops.gated(gate, up, kind), REFERENCE.gated(gate, up, kind), 4.0)
    assert torch.equal(x, before)


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("rotary_dim", [8, 6], ids=["whole head", "part of the head"])
def test_rope(dtype: torch.dtype, rotary_dim: int) -> None:
    angles = draw(5, rotary_dim // 2, seed=1, dtype=torch.float32)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    x = draw(5, 3, 8, seed=2, dtype=dtype)
    assert_agree(OPS[0].rope(x, cos, sin), REFERENCE.rope(x, cos, sin))
    half = rotary_dim // 2
    rotation = torch.polar(torch.ones(5, 1, half, dtype=torch.float64), angles.double().unsqueeze(1))
    rotated = torch.complex(x[..., :half].double(), x[..., half:rotary_dim].double()) * rotation
    exact = torch.cat((rotated.real, rotated.imag, x[..., rotary_dim:].double()), -1)
    assert_agree(REFERENCE.rope(x, cos, sin), exact.to(dtype))


def test_select() -> None:
    assert [select_ops(name).name for name in ("cpu", "torch", "reference")] == ["cpu", "torch", "reference"]
