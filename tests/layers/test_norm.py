"""Norms that add to a residual, and one that is left to whoever reads its rows."""

from __future__ import annotations

import pytest
import torch

from quire.kernels.reference import ReferenceOps
from quire.layers.norm import LayerNorm, Norm, RMSNorm

OPS = ReferenceOps()
WEIGHT, BIAS = torch.linspace(0.5, 2, 24), torch.linspace(-1, 1, 24)


def draw(seed: int) -> torch.Tensor:
    return torch.randn(5, 24, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("norm", [RMSNorm(OPS, WEIGHT, 1e-5), LayerNorm(OPS, WEIGHT, BIAS, 1e-5)], ids=["rms", "layer"])
def test_a_norm_adds_to_the_residual(norm: Norm) -> None:
    x, residual = draw(0), draw(1)
    alone = norm.forward(x)
    torch.testing.assert_close(norm.forward(x, residual.clone()), residual + alone)


def test_what_is_deferred_is_the_norm_in_float32() -> None:
    norm = RMSNorm(OPS, WEIGHT.bfloat16(), 1e-5)
    deferred = norm.deferred(draw(2).bfloat16())
    assert deferred.weight.dtype == torch.float32
    assert norm.deferred(deferred.x).weight.data_ptr() == deferred.weight.data_ptr()
    scale = torch.rsqrt(deferred.x.float().square().mean(-1, keepdim=True) + deferred.eps)
    found = (deferred.x.float() * scale * deferred.weight).bfloat16()
    assert torch.equal(found, norm.forward(deferred.x))
