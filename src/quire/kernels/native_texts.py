"""K and V of whole texts into blocks that `native.paged_attention` reads (csrc/text_blocks.cpp)."""

from __future__ import annotations

from quire.core.native import KEYS_PER_PANEL
from quire.kernels.dtype import DType, dtype_of, is_bfloat16
from quire.kernels.native_module import current_instruction_set, current_program, module, thread_count
from quire.kernels.tensor import Tensor

BLOCK_SIZE = KEYS_PER_PANEL
"""Tokens: a block is one panel, so the kernel reads it without copying it."""


def write_texts(
    key: Tensor,
    value: Tensor,
    key_blocks: Tensor,
    value_blocks: Tensor,
    starts: Tensor,
) -> None:
    """key, value [T, num_kv_heads, head_dim] to [num_blocks, BLOCK_SIZE, num_kv_heads, head_dim], of one dtype of NATIVE_DTYPES.

    int64 starts [num_blocks + 1]: block b gets the tokens from starts[b] to starts[b + 1], at most BLOCK_SIZE of them. Where it
    has fewer, zeros lie behind them; a block of none is left as it is.
    """
    num_tokens, num_kv_heads, head_dim = key.shape
    num_blocks = key_blocks.shape[0]
    assert value.shape == key.shape
    assert key.dtype == value.dtype == key_blocks.dtype == value_blocks.dtype
    assert tuple(key_blocks.shape) == tuple(value_blocks.shape) == (num_blocks, BLOCK_SIZE, num_kv_heads, head_dim)
    assert key_blocks.is_contiguous()
    assert value_blocks.is_contiguous()
    assert dtype_of(starts.dtype) == DType.INT64
    assert tuple(starts.shape) == (num_blocks + 1,)
    assert starts.is_contiguous()
    assert num_tokens <= num_blocks * BLOCK_SIZE
    key, value = (x if tuple(x.stride()[1:]) == (head_dim, 1) else x.contiguous() for x in (key, value))
    module().write_texts(
        current_program(),
        isa=current_instruction_set(),
        bfloat16=is_bfloat16(key),
        key=key.data_ptr(),
        key_stride=key.stride()[0],
        value=value.data_ptr(),
        value_stride=value.stride()[0],
        key_blocks=key_blocks.data_ptr(),
        value_blocks=value_blocks.data_ptr(),
        starts=starts.data_ptr(),
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        num_threads=thread_count(),
    )
