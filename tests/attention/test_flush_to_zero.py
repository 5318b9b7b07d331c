"""Weights too small to be normal numbers are nothing to native attention, and to what its caller computes afterwards they are numbers."""

from __future__ import annotations

import math
import platform

import pytest
import torch
from tests.attention.paged_rows import PagedRows, Tokens, make_shape, make_tokens
from tests.attention.test_cpu_attention import ForcedBackend
from tests.kernels.forced import SETS

from quire.core.native import has_native_module

pytestmark = [
    pytest.mark.skipif(not has_native_module(), reason="the native kernels were not built"),
    pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="elsewhere they stay as they are"),
]

POWERS = 132
"""A power of two this far below the largest weight is below 2^-126 wherever the base is."""


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("length", [2, 200])
def test_weights_below_the_smallest_normal_number(length: int, dtype: torch.dtype, instruction_set: str) -> None:
    """All keys but the first have such a weight, and values that would show it."""
    shape = make_shape(num_heads=3, num_kv_heads=1, head_dim=64)
    query = torch.zeros(length, 3, 64)
    key = torch.zeros(length, 1, 64)
    value = torch.full((length, 1, 64), 1e38)
    query[:, :, 0] = 16.0
    key[1:, 0, 0] = -POWERS * math.log(2) / (16.0 * shape.scale)
    value[0] = 1.0
    row = Tokens(query.to(dtype), key.to(dtype), value.to(dtype))
    (output,) = PagedRows(ForcedBackend(instruction_set), shape, [row], block_size=16).run([{0: length - 1}, {0: 1}])
    assert torch.equal(output, torch.ones_like(output))
    assert (torch.tensor([1e-39]) * 0.5).item() > 0


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_zeros_have_one_sign_however_a_prompt_is_cut(dtype: torch.dtype, instruction_set: str) -> None:
    """Values that are flushed, and then keys that a query does not see, with values of the other sign."""
    row = make_tokens(make_shape(num_heads=2, num_kv_heads=1, head_dim=64), 40, 1, dtype)
    row.value[:20], row.value[20:] = -(2.0**-126), 1.0

    def run(cuts: list[dict[int, int]]) -> torch.Tensor:
        shape = make_shape(num_heads=2, num_kv_heads=1, head_dim=64)
        return PagedRows(ForcedBackend(instruction_set), shape, [row], block_size=16, seed=1).run(cuts)[0]

    whole, one_by_one = run([{0: 40}]), run([{0: 1}] * 40)
    assert torch.equal(whole, one_by_one)
    assert torch.equal(torch.signbit(whole), torch.signbit(one_by_one))
