"""Native attention and the K and V that it reads (csrc/), called with tensors: torch's, or the kernels' own (array.py)."""

from __future__ import annotations

from typing import TypeVar

from quire.core.kv_layout import values_per_head
from quire.core.native import KEYS_PER_PANEL, MAX_HEADS_PER_KV_HEAD
from quire.kernels.array import empty_array
from quire.kernels.dtype import DType, dtype_of, is_bfloat16
from quire.kernels.native_module import current_instruction_set, current_program, module, thread_count
from quire.kernels.tensor import Tensor

T = TypeVar("T", bound=Tensor)

TEXT_BLOCK_SIZE = KEYS_PER_PANEL
"""Tokens of a block of a whole text: it is one panel, so the kernel reads it without copying it."""


def paged_attention(
    query: T,
    key: Tensor,
    value: Tensor,
    block_tables: Tensor,
    query_starts: Tensor,
    context_lens: Tensor,
    *,
    scale: float,
    window: int | None = None,
    logit_softcap: float | None = None,
    causal: bool = True,
) -> T:
    """Attention of T tokens in R rows over KV in blocks (csrc/attention.h) -> [T, num_heads, head_dim].

    query [T, num_heads, head_dim] of one of NATIVE_DTYPES; key, value as `write_kv` has written them: within a block the order is the
    kernel's own (csrc/kv_cache.h); int64 block_tables [R, max_blocks], query_starts [R + 1], context_lens [R].
    Not `causal`: a token sees all of its row, which has no window then.
    A token's result has the same bits whatever else is in the step, with any number of threads: keys are summed in sections
    (csrc/attention_jobs.h), which threads compute side by side where there are few rows.
    """
    num_tokens, num_heads, head_dim = query.shape
    assert causal or window is None
    _, block_size, num_kv_heads, _ = key.shape
    codes = _holds_codes(key, value, query, head_dim)
    num_rows = context_lens.shape[0]
    assert all(dtype_of(x.dtype) == DType.INT64 for x in (block_tables, query_starts, context_lens))
    assert block_tables.shape[0] == num_rows
    assert tuple(query_starts.shape) == (num_rows + 1,)
    assert query_starts.is_contiguous()
    assert context_lens.is_contiguous()
    assert num_heads % num_kv_heads == 0
    assert 0 < num_heads <= MAX_HEADS_PER_KV_HEAD * num_kv_heads
    query = _heads_together(query)
    block_tables = block_tables.contiguous()
    output = query.new_empty((num_tokens, num_heads, head_dim))
    num_floats = module().attention_scratch(
        num_queries=num_tokens * num_heads,
        head_dim=head_dim,
        window=window or 0,
        max_context=block_tables.shape[1] * block_size,
        num_threads=thread_count(),
    )
    scratch = empty_array((num_floats,), DType.FLOAT32)
    module().attend(
        current_program(),
        isa=current_instruction_set(),
        bfloat16=is_bfloat16(query),
        codes=codes,
        query=query.data_ptr(),
        query_stride=query.stride()[0],
        key=key.data_ptr(),
        value=value.data_ptr(),
        output=output.data_ptr(),
        block_tables=block_tables.data_ptr(),
        max_blocks=block_tables.shape[1],
        query_starts=query_starts.data_ptr(),
        context_lens=context_lens.data_ptr(),
        num_rows=num_rows,
        block_size=block_size,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        scale=scale,
        softcap=logit_softcap or 0.0,
        window=window or 0,
        causal=causal,
        scratch=scratch.data_ptr(),
        scratch_floats=num_floats,
        num_threads=thread_count(),
    )
    return output


def write_kv(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slots: Tensor,
    *,
    rotated: tuple[Tensor, Tensor, Tensor] | None = None,
) -> None:
    """key, value [T, num_kv_heads, head_dim] to int64 slots [T] of caches that `paged_attention` reads.

    `rotated`: queries [T, num_heads, head_dim], cos and sin. Before, these and the keys are rotated in place, as `rope_` does.

    The caches [num_blocks, block_size, num_kv_heads, head_dim] are of key's dtype; or of int8, with SCALE_BYTES more in the last
    dimension: round(x / scale) for each x, and the scale of each token and head: its largest magnitude / 127, the next
    bfloat16 that is not below.
    """
    num_tokens, num_kv_heads, head_dim = key.shape
    assert value.shape == key.shape
    assert key.dtype == value.dtype
    assert key_cache.shape[2] == num_kv_heads
    codes = _holds_codes(key_cache, value_cache, key, head_dim)
    assert dtype_of(slots.dtype) == DType.INT64
    assert tuple(slots.shape) == (num_tokens,)
    assert slots.is_contiguous()
    key, value = _heads_together(key), _heads_together(value)
    module().write_kv(
        current_program(by_token=True),
        isa=current_instruction_set(),
        bfloat16=is_bfloat16(key),
        codes=codes,
        key=key.data_ptr(),
        key_stride=key.stride()[0],
        value=value.data_ptr(),
        value_stride=value.stride()[0],
        key_cache=key_cache.data_ptr(),
        value_cache=value_cache.data_ptr(),
        slots=slots.data_ptr(),
        num_tokens=num_tokens,
        block_size=key_cache.shape[1],
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rotation=None if rotated is None else _rotation(key, *rotated),
        num_threads=thread_count(),
    )


def write_texts(key: Tensor, value: Tensor, key_blocks: Tensor, value_blocks: Tensor, starts: Tensor) -> None:
    """K and V of whole texts (csrc/text_blocks.cpp): key, value [T, num_kv_heads, head_dim] to [num_blocks, TEXT_BLOCK_SIZE,
    num_kv_heads, head_dim], of one dtype of NATIVE_DTYPES.

    int64 starts [num_blocks + 1]: block b gets the tokens from starts[b] to starts[b + 1], at most TEXT_BLOCK_SIZE of them. Where it
    has fewer, zeros lie behind them; a block of none is left as it is.
    """
    num_tokens, num_kv_heads, head_dim = key.shape
    num_blocks = key_blocks.shape[0]
    assert value.shape == key.shape
    assert key.dtype == value.dtype == key_blocks.dtype == value_blocks.dtype
    assert tuple(key_blocks.shape) == tuple(value_blocks.shape) == (num_blocks, TEXT_BLOCK_SIZE, num_kv_heads, head_dim)
    assert key_blocks.is_contiguous()
    assert value_blocks.is_contiguous()
    assert dtype_of(starts.dtype) == DType.INT64
    assert tuple(starts.shape) == (num_blocks + 1,)
    assert starts.is_contiguous()
    assert num_tokens <= num_blocks * TEXT_BLOCK_SIZE
    key, value = _heads_together(key), _heads_together(value)
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
        block_size=TEXT_BLOCK_SIZE,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        num_threads=thread_count(),
    )


def _heads_together(x: T) -> T:
    """[T, heads, head_dim], of which only tokens lie apart."""
    return x if tuple(x.stride()[1:]) == (x.shape[2], 1) else x.contiguous()


def _rotation(key: Tensor, query: Tensor, cos: Tensor, sin: Tensor) -> tuple[tuple[int, int, int], int, int, int, int]:
    (num_tokens, num_heads, width), half = query.shape, cos.shape[1]
    assert (key.shape[0], key.shape[2]) == (num_tokens, width)
    assert query.stride()[2] == 1
    assert 2 * half <= width
    assert tuple(cos.shape) == tuple(sin.shape) == (num_tokens, half)
    assert cos.dtype == sin.dtype == query.dtype == key.dtype
    assert cos.is_contiguous()
    assert sin.is_contiguous()
    return (query.data_ptr(), query.stride()[0], query.stride()[1]), num_heads, cos.data_ptr(), sin.data_ptr(), half


def _holds_codes(key: Tensor, value: Tensor, x: Tensor, head_dim: int) -> bool:
    """Whether a layer's cache, for vectors like those of `x`, is of int8."""
    dtype = dtype_of(key.dtype)
    assert key.is_contiguous()
    assert value.is_contiguous()
    assert key.shape == value.shape
    assert key.dtype == value.dtype
    assert key.shape[3] == values_per_head(head_dim, dtype.value)
    assert dtype in (DType.INT8, dtype_of(x.dtype))
    return dtype == DType.INT8
