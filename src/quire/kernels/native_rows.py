"""What native kernels do to each token by itself (csrc/row_ops.cpp): norms, rotation, gates, sums, rows of tables."""

from __future__ import annotations

from typing import Any, TypeVar

from quire.kernels.dtype import DType, dtype_of, is_bfloat16
from quire.kernels.native_module import current_instruction_set, current_program, module, thread_count
from quire.kernels.tensor import Tensor

T = TypeVar("T", bound=Tensor)

GATES = frozenset({"silu", "gelu", "gelu_tanh", "relu"})
"""Activations that `gated` and `activate` have."""


def rms_norm(x: T, weight: Tensor, eps: float, residual: T | None = None) -> T:
    """x / rms(x) * weight over the last dimension of [T, D] or [T, H, D], contiguous; or, of [T, D], added to `residual`
    [T, D], in its memory."""
    assert weight.dtype == x.dtype
    assert weight.is_contiguous()
    heads = _heads(x)
    num_tokens, num_heads, width = heads.shape
    assert tuple(weight.shape) == (width,)
    if residual is None:
        y = x.new_empty(x.shape)
        out = (y.data_ptr(), num_heads * width, width)
    else:
        y = residual
        assert y.dtype == x.dtype
        assert tuple(y.shape) == tuple(x.shape) == (num_tokens, width)
        assert y.stride()[1] == 1
        out = _strided(y.unsqueeze(1))
    num_threads, bfloat16 = thread_count(), is_bfloat16(x)
    module().rms_norm(
        current_program(by_token=True),
        current_instruction_set(),
        _strided(heads),
        weight.data_ptr(),
        out,
        residual is not None,
        num_tokens,
        num_heads,
        width,
        eps,
        bfloat16,
        num_threads,
    )
    return y


def layer_norm(x: T, weight: Tensor, bias: Tensor | None, eps: float) -> T:
    """(x - mean) / std * weight + bias over the last dimension of [T, D] or [T, H, D], contiguous."""
    heads = _heads(x)
    num_tokens, num_heads, width = heads.shape
    for parameter in (weight,) if bias is None else (weight, bias):
        assert parameter.dtype == x.dtype
        assert tuple(parameter.shape) == (width,)
        assert parameter.is_contiguous()
    y = x.new_empty(tuple(x.shape))
    module().layer_norm(
        current_program(by_token=True),
        isa=current_instruction_set(),
        x=_strided(heads),
        weight=weight.data_ptr(),
        bias=0 if bias is None else bias.data_ptr(),
        y=(y.data_ptr(), num_heads * width, width),
        num_tokens=num_tokens,
        num_heads=num_heads,
        width=width,
        eps=eps,
        bfloat16=is_bfloat16(x),
        num_threads=thread_count(),
    )
    return y


def rope_(x: T, cos: Tensor, sin: Tensor) -> T:
    """Rotates [T, H, D] in place, by halves of the first 2 S values; cos, sin [T, S]."""
    (num_tokens, num_heads, width), half = x.shape, cos.shape[1]
    assert x.stride()[2] == 1
    assert 2 * half <= width
    assert tuple(cos.shape) == tuple(sin.shape) == (num_tokens, half)
    assert cos.dtype == sin.dtype == x.dtype
    cos, sin = cos.contiguous(), sin.contiguous()
    num_threads, bfloat16 = thread_count(), is_bfloat16(x)
    module().rope(
        current_program(by_token=True),
        current_instruction_set(),
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


def gated(gate: T, up: Tensor, kind: str) -> T:
    """activation(gate) * up, each [T, D]; `kind` is one of GATES."""
    return _map_pairs("gated", gate, up, module().Activation[kind])


def gated_halves(both: T, kind: str) -> T:
    """`gated` of the halves of [T, 2 D]."""
    gate, up = both.chunk(2, dim=-1)
    return gated(gate, up, kind)


def activate(x: T, kind: str) -> T:
    """[T, D]; `kind` is one of GATES."""
    return _map_values("activate", x, activation=module().Activation[kind])


def softcap(logits: T, cap: float) -> T:
    """cap * tanh(logits / cap), [T, D]."""
    return _map_values("softcap", logits, cap=cap)


def add(x: T, z: T) -> T:
    """x + z, each [T, D]."""
    return _map_pairs("add", x, z)


def scale(x: T, factor: float) -> T:
    """x * factor, [T, D]."""
    return _map_values("scale", x, factor=factor)


def gather(table: T, indices: Tensor) -> T:
    """Rows of a table [V, D] by int64 [T] -> [T, D]."""
    assert table.stride()[1] == 1
    assert dtype_of(indices.dtype) == DType.INT64
    assert indices.is_contiguous()
    num_tokens, width = indices.shape[0], table.shape[1]
    y = table.new_empty((num_tokens, width))
    module().gather(
        current_program(),
        current_instruction_set(),
        table.data_ptr(),
        table.stride()[0],
        indices.data_ptr(),
        y.data_ptr(),
        num_tokens,
        width,
        is_bfloat16(table),
        thread_count(),
    )
    return y


def _map_pairs(name: str, x: T, z: Tensor, *options: object) -> T:
    """The function of that name, of both, each [T, D]."""
    assert x.shape == z.shape
    assert x.dtype == z.dtype
    assert x.stride()[1] == z.stride()[1] == 1
    num_tokens, width = x.shape
    y = x.new_empty((num_tokens, width))
    getattr(module(), name)(
        current_program(by_token=True),
        current_instruction_set(),
        (x.data_ptr(), x.stride()[0], 0),
        (z.data_ptr(), z.stride()[0], 0),
        (y.data_ptr(), width, 0),
        num_tokens,
        width,
        *options,
        is_bfloat16(x),
        thread_count(),
    )
    return y


def _map_values(kernel: str, x: T, **parameters: Any) -> T:
    """A kernel that makes of each value of [T, D] one of its own."""
    assert x.stride()[1] == 1
    num_tokens, width = x.shape
    y = x.new_empty((num_tokens, width))
    getattr(module(), kernel)(
        current_program(by_token=True),
        isa=current_instruction_set(),
        x=(x.data_ptr(), x.stride()[0], 0),
        y=(y.data_ptr(), width, 0),
        num_tokens=num_tokens,
        width=width,
        bfloat16=is_bfloat16(x),
        num_threads=thread_count(),
        **parameters,
    )
    return y


def _heads(x: T) -> T:
    """[T, D] as [T, 1, D]; the numbers of a head lie together."""
    heads = x.unsqueeze(1) if len(x.shape) == 2 else x
    return heads if heads.stride()[2] == 1 else heads.contiguous()


def _strided(x: Tensor) -> tuple[int, int, int]:
    return x.data_ptr(), x.stride()[0], x.stride()[1]
