"""The native CPU kernels (csrc/), where they were built: loaded beside torch's thread team, and called with tensors."""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import torch

from quire.core.native import MAX_HEADS_PER_KV_HEAD, has_native_module

DTYPES = frozenset({torch.float32, torch.bfloat16})


@cache
def instruction_sets() -> tuple[str, ...]:
    """Those this CPU has, the fastest first; none where the module was not built."""
    return tuple(_module().instruction_sets()) if has_native_module() else ()


def paged_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    block_tables: torch.Tensor,
    query_starts: torch.Tensor,
    context_lens: torch.Tensor,
    *,
    scale: float,
    window: int | None = None,
    logit_softcap: float | None = None,
    instruction_set: str | None = None,
) -> torch.Tensor:
    """Causal attention of T tokens in R rows over KV in blocks (csrc/attention.cpp) -> [T, num_heads, head_dim].

    query [T, num_heads, head_dim]; key, value [num_blocks, block_size, num_kv_heads, head_dim], contiguous, of one
    dtype of DTYPES; int64 block_tables [R, max_blocks], query_starts [R + 1], context_lens [R].
    A token's result has the same bits whatever else is in the step, with any number of threads.
    """
    num_tokens, num_heads, head_dim = query.shape
    _, block_size, num_kv_heads, _ = key.shape
    assert key.is_contiguous()
    assert value.is_contiguous()
    assert key.shape == value.shape
    assert key.shape[3] == head_dim
    assert query.dtype == key.dtype == value.dtype
    assert query.dtype in DTYPES
    assert all(x.dtype == torch.int64 for x in (block_tables, query_starts, context_lens))
    assert num_heads <= MAX_HEADS_PER_KV_HEAD * num_kv_heads
    if query.stride()[1:] != (head_dim, 1):
        query = query.contiguous()
    block_tables = block_tables.contiguous()
    output = query.new_empty(num_tokens, num_heads, head_dim)
    _module().attend(
        isa=instruction_set or instruction_sets()[0],
        bfloat16=query.dtype == torch.bfloat16,
        query=query.data_ptr(),
        query_stride=query.stride(0),
        key=key.data_ptr(),
        value=value.data_ptr(),
        output=output.data_ptr(),
        block_tables=block_tables.data_ptr(),
        max_blocks=block_tables.shape[1],
        query_starts=query_starts.data_ptr(),
        context_lens=context_lens.data_ptr(),
        num_rows=context_lens.shape[0],
        block_size=block_size,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        scale=scale,
        softcap=logit_softcap or 0.0,
        window=window or 0,
        num_threads=torch.get_num_threads(),
    )
    return output


def logits(x: torch.Tensor, weight: torch.Tensor, *, instruction_set: str | None = None) -> torch.Tensor:
    """x [L, K] @ weight [V, K].T, summed in float32 (csrc/logits.cpp) -> float32 [L, V]; weight of a dtype of DTYPES.

    A row's result has the same bits whatever the other rows are, with any number of threads.
    """
    (num_rows, num_features), num_outputs = x.shape, weight.shape[0]
    assert weight.is_contiguous()
    assert weight.shape[1] == num_features
    assert weight.dtype in DTYPES
    x32 = x.float().contiguous()
    y = x32.new_empty(num_rows, num_outputs)
    _module().logits(
        isa=instruction_set or instruction_sets()[0],
        bfloat16=weight.dtype == torch.bfloat16,
        x=x32.data_ptr(),
        weight=weight.data_ptr(),
        y=y.data_ptr(),
        num_rows=num_rows,
        num_features=num_features,
        num_outputs=num_outputs,
        num_threads=torch.get_num_threads(),
    )
    return y


@cache
def _module() -> ModuleType:
    _share_openmp()
    return importlib.import_module("quire._native")


def _share_openmp() -> None:
    """Make the OpenMP that torch runs on visible to the module, which is linked to none of its own (CMakeLists.txt)."""
    if sys.platform != "linux":
        return
    loaded = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libgomp" in line}
    ctypes.CDLL(min(loaded, default="libgomp.so.1"), mode=os.RTLD_NOW | os.RTLD_GLOBAL)
