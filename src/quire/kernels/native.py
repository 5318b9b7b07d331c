"""The native CPU kernels (csrc/), where they were built: loaded beside torch's thread team, and called with tensors."""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from quire.core.native import MAX_HEADS_PER_KV_HEAD, has_native_module
from quire.errors import InvalidRequestError
from quire.kernels.recording import Arena, NotRecordable, Recording, current_recording, empty

DTYPES = frozenset({torch.float32, torch.bfloat16})
GATES = frozenset({"silu", "gelu", "gelu_tanh", "relu"})
"""Activations that `gated` and `native_rows.activate` have."""


_chosen: list[str] = []


@cache
def instruction_sets() -> tuple[str, ...]:
    """Those this CPU has, the one in use first, then the fastest; none where the module was not built."""
    present = module().instruction_sets() if has_native_module() else ()
    return tuple(sorted(present, key=lambda name: name not in _chosen))


def use_instruction_set(name: str) -> None:
    """From now on in this process. What is recorded already keeps its own. Raises InvalidRequestError naming the CPU's."""
    if name not in instruction_sets():
        raise InvalidRequestError(
            f"instruction_set {name} cannot be used: this CPU has {', '.join(instruction_sets())}.",
            field="instruction_set",
            value=name,
        )
    _chosen[:] = [name]
    instruction_sets.cache_clear()


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
    causal: bool = True,
    instruction_set: str | None = None,
) -> torch.Tensor:
    """Attention of T tokens in R rows over KV in blocks (csrc/attention.cpp) -> [T, num_heads, head_dim].

    query [T, num_heads, head_dim]; key, value [num_blocks, block_size, num_kv_heads, head_dim], of one dtype of DTYPES,
    written by `write_kv`: within a block the order is the kernel's own (csrc/kv_cache.h); int64 block_tables [R, max_blocks], query_starts [R + 1], context_lens [R].
    Not `causal`: a token sees all of its row, which has no window then.
    A token's result has the same bits whatever else is in the step, with any number of threads.
    """
    num_tokens, num_heads, head_dim = query.shape
    assert causal or window is None
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
    output = empty((num_tokens, num_heads, head_dim), query.dtype)
    module().attend(
        current_program(),
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
        causal=causal,
        num_threads=torch.get_num_threads(),
    )
    return output


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / rms(x) * weight over the last dimension of [T, D] or [T, H, D] (csrc/row_ops.cpp), contiguous."""
    assert weight.dtype == x.dtype
    heads = x.unsqueeze(1) if x.dim() == 2 else x
    if heads.stride(2) != 1:
        heads = heads.contiguous()
    num_tokens, num_heads, width = heads.shape
    assert weight.shape == (width,)
    y = empty(tuple(x.shape), x.dtype)
    out = (y.data_ptr(), num_heads * width, width)
    num_threads, bfloat16 = torch.get_num_threads(), is_bfloat16(x)
    module().rms_norm(
        current_program(by_token=True),
        instruction_sets()[0],
        _strided(heads),
        weight.data_ptr(),
        out,
        num_tokens,
        num_heads,
        width,
        eps,
        bfloat16,
        num_threads,
    )
    return y


def rope_(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotates [T, H, D] in place, by halves of the first 2 S values (csrc/row_ops.cpp); cos, sin [T, S]."""
    (num_tokens, num_heads, width), half = x.shape, cos.shape[1]
    assert x.stride(2) == 1
    assert 2 * half <= width
    assert cos.shape == sin.shape == (num_tokens, half)
    assert cos.dtype == sin.dtype == x.dtype
    cos, sin = cos.contiguous(), sin.contiguous()
    num_threads, bfloat16 = torch.get_num_threads(), is_bfloat16(x)
    module().rope(
        current_program(by_token=True),
        instruction_sets()[0],
        _strided(x),
        cos.data_ptr(),
        sin.data_ptr(),
        num_tokens,
        num_heads,
        half,
        bfloat16,
        num_threads,
    )
    return x


def gated(gate: torch.Tensor, up: torch.Tensor, kind: str) -> torch.Tensor:
    """activation(gate) * up, each [T, D] (csrc/row_ops.cpp); `kind` is one of GATES."""
    assert gate.shape == up.shape
    assert gate.dtype == up.dtype
    assert gate.stride(1) == up.stride(1) == 1
    num_tokens, width = gate.shape
    y = empty((num_tokens, width), gate.dtype)
    module().gated(
        current_program(by_token=True),
        instruction_sets()[0],
        (gate.data_ptr(), gate.stride(0), 0),
        (up.data_ptr(), up.stride(0), 0),
        (y.data_ptr(), width, 0),
        num_tokens,
        width,
        getattr(module().Activation, kind),
        is_bfloat16(gate),
        torch.get_num_threads(),
    )
    return y


def write_kv(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slots: torch.Tensor,
    *,
    instruction_set: str | None = None,
) -> None:
    """key, value [T, num_kv_heads, head_dim] to int64 slots [T] of caches that `paged_attention` reads."""
    num_tokens, num_kv_heads, head_dim = key.shape
    assert value.shape == key.shape
    assert key.dtype == value.dtype == key_cache.dtype == value_cache.dtype
    assert key_cache.shape == value_cache.shape
    assert key_cache.shape[2:] == (num_kv_heads, head_dim)
    assert key_cache.is_contiguous()
    assert value_cache.is_contiguous()
    assert slots.dtype == torch.int64
    assert slots.shape == (num_tokens,)
    assert slots.is_contiguous()
    key, value = (x if x.stride()[1:] == (head_dim, 1) else x.contiguous() for x in (key, value))
    module().write_kv(
        current_program(by_token=True),
        isa=instruction_set or instruction_sets()[0],
        bfloat16=is_bfloat16(key),
        key=key.data_ptr(),
        key_stride=key.stride(0),
        value=value.data_ptr(),
        value_stride=value.stride(0),
        key_cache=key_cache.data_ptr(),
        value_cache=value_cache.data_ptr(),
        slots=slots.data_ptr(),
        num_tokens=num_tokens,
        block_size=key_cache.shape[1],
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        num_threads=torch.get_num_threads(),
    )


def add(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    """x + z, each [T, D] (csrc/row_ops.cpp)."""
    assert x.shape == z.shape
    assert x.dtype == z.dtype
    assert x.stride(1) == z.stride(1) == 1
    num_tokens, width = x.shape
    y = empty((num_tokens, width), x.dtype)
    module().add(
        current_program(by_token=True),
        instruction_sets()[0],
        (x.data_ptr(), x.stride(0), 0),
        (z.data_ptr(), z.stride(0), 0),
        (y.data_ptr(), width, 0),
        num_tokens,
        width,
        is_bfloat16(x),
        torch.get_num_threads(),
    )
    return y


def scale(x: torch.Tensor, factor: float) -> torch.Tensor:
    """x * factor, [T, D] (csrc/row_ops.cpp)."""
    assert x.stride(1) == 1
    num_tokens, width = x.shape
    y = empty((num_tokens, width), x.dtype)
    out = (y.data_ptr(), width, 0)
    num_threads, bfloat16 = torch.get_num_threads(), is_bfloat16(x)
    module().scale(
        current_program(by_token=True),
        instruction_sets()[0],
        (x.data_ptr(), x.stride(0), 0),
        out,
        num_tokens,
        width,
        factor,
        bfloat16,
        num_threads,
    )
    return y


def gather(table: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Rows of a contiguous table [V, D] by int64 [T] -> [T, D] (csrc/row_ops.cpp)."""
    assert table.is_contiguous()
    assert indices.dtype == torch.int64
    assert indices.is_contiguous()
    num_tokens, width = indices.shape[0], table.shape[1]
    y = empty((num_tokens, width), table.dtype)
    module().gather(
        current_program(),
        instruction_sets()[0],
        table.data_ptr(),
        indices.data_ptr(),
        y.data_ptr(),
        num_tokens,
        width,
        is_bfloat16(table),
        torch.get_num_threads(),
    )
    return y


def new_recording(arena: Arena) -> Recording:
    """Enter it, compute, leave it; then `run` its program, as often as wanted, with new numbers in the same tensors.

    Programs that never run at the same time may share an arena.
    """
    return Recording(module().Program(), arena, _TRANSLATED)


def _recorded_sum(x: torch.Tensor, z: object) -> torch.Tensor:
    if not (isinstance(z, torch.Tensor) and _are_rows(x, z) and x.shape == z.shape and x.dtype == z.dtype):
        raise NotRecordable("aten.add.Tensor of other than two matrices of one shape")
    return add(x, z)


def _recorded_product(x: torch.Tensor, factor: object) -> torch.Tensor:
    if not (isinstance(factor, float | int) and _are_rows(x)):
        raise NotRecordable("aten.mul.Tensor of other than a matrix and a number")
    return scale(x, float(factor))


def _recorded_lookup(table: torch.Tensor, dim: int, indices: torch.Tensor) -> torch.Tensor:
    if not (dim == 0 and _are_rows(table) and table.is_contiguous()):
        raise NotRecordable("aten.index_select.default of other than a matrix's rows")
    return gather(table, indices)


def _are_rows(*matrices: torch.Tensor) -> bool:
    return all(x.dim() == 2 and x.stride(1) == 1 and x.dtype in DTYPES for x in matrices)


_TRANSLATED: dict[Any, Callable[..., torch.Tensor]] = {
    torch.ops.aten.add.Tensor: _recorded_sum,
    torch.ops.aten.mul.Tensor: _recorded_product,
    torch.ops.aten.index_select.default: _recorded_lookup,
}


def run(recording: Recording) -> None:
    recording.program.run(torch.get_num_threads())


def current_program(*, by_token: bool = False) -> Any:
    """What the kernels are recorded into; None where they are to run.

    `by_token`: of neighbouring kernels each thread goes on with the tokens it had, without waiting for the others.
    """
    recording = current_recording()
    if recording is None:
        return None
    if not by_token:
        recording.arena.settle()
    return recording.program


def _strided(x: torch.Tensor) -> tuple[int, int, int]:
    return x.data_ptr(), x.stride(0), x.stride(1)


def is_bfloat16(x: torch.Tensor) -> bool:
    """Raises AssertionError for a dtype without kernels."""
    assert x.dtype in DTYPES
    return x.dtype == torch.bfloat16


@cache
def module() -> ModuleType:
    """quire._native; only files of this folder call it."""
    _share_openmp()
    return importlib.import_module("quire._native")


def _share_openmp() -> None:
    """Make the OpenMP that torch runs on visible to the module, which is linked to none of its own (CMakeLists.txt)."""
    if sys.platform != "linux":
        return
    loaded = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libgomp" in line}
    ctypes.CDLL(min(loaded, default="libgomp.so.1"), mode=os.RTLD_NOW | os.RTLD_GLOBAL)
