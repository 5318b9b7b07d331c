"""What native kernels do to each token by itself (csrc/row_ops.cpp), beyond what native.py has of it."""

from __future__ import annotations

import torch

from quire.kernels.native import current_program, instruction_sets, is_bfloat16, module
from quire.kernels.recording import empty


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float) -> torch.Tensor:
    """(x - mean) / std * weight + bias over the last dimension of [T, D] or [T, H, D], contiguous."""
    heads = x.unsqueeze(1) if x.dim() == 2 else x
    if heads.stride(2) != 1:
        heads = heads.contiguous()
    num_tokens, num_heads, width = heads.shape
    for parameter in (weight,) if bias is None else (weight, bias):
        assert parameter.dtype == x.dtype
        assert parameter.shape == (width,)
        assert parameter.is_contiguous()
    y = empty(tuple(x.shape), x.dtype)
    module().layer_norm(
        current_program(by_token=True),
        isa=instruction_sets()[0],
        x=(heads.data_ptr(), heads.stride(0), heads.stride(1)),
        weight=weight.data_ptr(),
        bias=0 if bias is None else bias.data_ptr(),
        y=(y.data_ptr(), num_heads * width, width),
        num_tokens=num_tokens,
        num_heads=num_heads,
        width=width,
        eps=eps,
        bfloat16=is_bfloat16(x),
        num_threads=torch.get_num_threads(),
    )
    return y


def activate(x: torch.Tensor, kind: str) -> torch.Tensor:
    """[T, D]; `kind` is one of GATES."""
    assert x.stride(1) == 1
    num_tokens, width = x.shape
    y = empty((num_tokens, width), x.dtype)
    module().activate(
        current_program(by_token=True),
        isa=instruction_sets()[0],
        x=(x.data_ptr(), x.stride(0), 0),
        y=(y.data_ptr(), width, 0),
        num_tokens=num_tokens,
        width=width,
        activation=module().Activation[kind],
        bfloat16=is_bfloat16(x),
        num_threads=torch.get_num_threads(),
    )
    return y
