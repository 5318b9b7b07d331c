"""What native kernels do to each token by itself (csrc/row_ops.cpp), beyond what native.py has of it."""

from __future__ import annotations

from typing import Any, TypeVar

from quire.kernels.dtype import is_bfloat16
from quire.kernels.native_module import current_program, instruction_sets, module, thread_count
from quire.kernels.tensor import Tensor

T = TypeVar("T", bound=Tensor)


def layer_norm(x: T, weight: Tensor, bias: Tensor | None, eps: float) -> T:
    """(x - mean) / std * weight + bias over the last dimension of [T, D] or [T, H, D], contiguous."""
    heads = x.unsqueeze(1) if len(x.shape) == 2 else x
    if heads.stride()[2] != 1:
        heads = heads.contiguous()
    num_tokens, num_heads, width = heads.shape
    for parameter in (weight,) if bias is None else (weight, bias):
        assert parameter.dtype == x.dtype
        assert tuple(parameter.shape) == (width,)
        assert parameter.is_contiguous()
    y = x.new_empty(tuple(x.shape))
    module().layer_norm(
        current_program(by_token=True),
        isa=instruction_sets()[0],
        x=(heads.data_ptr(), heads.stride()[0], heads.stride()[1]),
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


def activate(x: T, kind: str) -> T:
    """[T, D]; `kind` is one of GATES."""
    return _map_values("activate", x, activation=module().Activation[kind])


def softcap(x: T, cap: float) -> T:
    """cap * tanh(x / cap), [T, D]."""
    return _map_values("softcap", x, cap=cap)


def _map_values(kernel: str, x: T, **parameters: Any) -> T:
    """A kernel that makes of each value of [T, D] one of its own."""
    assert x.stride()[1] == 1
    num_tokens, width = x.shape
    y = x.new_empty((num_tokens, width))
    getattr(module(), kernel)(
        current_program(by_token=True),
        isa=instruction_sets()[0],
        x=(x.data_ptr(), x.stride()[0], 0),
        y=(y.data_ptr(), width, 0),
        num_tokens=num_tokens,
        width=width,
        bfloat16=is_bfloat16(x),
        num_threads=thread_count(),
        **parameters,
    )
    return y
