"""The guards see what they are there for, and native kernels write between them."""

from __future__ import annotations

import ctypes

import pytest
import torch
from tests.kernels.guarded import GuardedMemory, guarded_outputs

from quire.core.native import has_native_module
from quire.kernels import native_rows


@pytest.mark.parametrize("offset", [-1, 24])
def test_a_byte_beside_the_output_is_seen(offset: int) -> None:
    guarded = GuardedMemory()
    memory = guarded.empty((2, 3), torch.float32)
    ctypes.memset(memory.data_ptr() + offset, 0, 1)
    with pytest.raises(AssertionError, match="the output"):
        guarded.check()


@pytest.mark.skipif(not has_native_module(), reason="the native kernels were not built")
def test_kernels_write_into_guarded_memory() -> None:
    x = torch.ones(2, 3)
    with guarded_outputs() as guarded:
        y = native_rows.add(x, x)
        byte = (ctypes.c_uint8 * 1).from_address(y.data_ptr() + 4 * y.numel())
        byte[0] = 0
        with pytest.raises(AssertionError, match="past the output"):
            guarded.check()
