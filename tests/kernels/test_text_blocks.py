"""Whole blocks of K and V lie where the cache's writes would have put them, token by token."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.kernels.forced import forced

from quire.core.native import has_native_module
from quire.kernels import native_attention, native_module
from quire.kernels.native_attention import TEXT_BLOCK_SIZE, write_texts

pytestmark = pytest.mark.skipif(not has_native_module(), reason="the native kernels were not built")


@given(
    counts=st.lists(st.integers(1, TEXT_BLOCK_SIZE), min_size=1, max_size=6),
    num_heads=st.integers(1, 4),
    width=st.integers(1, 70),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    instruction_set=st.sampled_from(native_module.instruction_sets() or ("none",)),
)
def test_write_texts(counts: list[int], num_heads: int, width: int, dtype: torch.dtype, instruction_set: str) -> None:
    """Of heads that lie apart, with NaN between; into guarded memory."""
    num_tokens, shape = sum(counts), (len(counts), TEXT_BLOCK_SIZE, num_heads, width)
    heads = torch.full((num_tokens, 2 * num_heads + 1, width), torch.nan, dtype=dtype)
    key, value = heads[:, :num_heads], heads[:, num_heads + 1 :]
    for seed, part in enumerate((key, value)):
        part.copy_(torch.randn(part.shape, generator=torch.Generator().manual_seed(seed)))
    starts = torch.tensor([0, *counts]).cumsum(0)
    slots = torch.cat([block * TEXT_BLOCK_SIZE + torch.arange(count) for block, count in enumerate(counts)])
    expected = [torch.zeros(shape, dtype=dtype) for _ in range(2)]
    found = [torch.empty(shape, dtype=dtype) for _ in range(2)]
    panels = width * dtype.itemsize % 4 == 0
    if not panels:  # what is behind a block's tokens is left alone
        for memory in found:
            memory.zero_()
    native_attention.write_kv(key, value, *expected, slots)
    forced(instruction_set, write_texts, key, value, *found, starts)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
