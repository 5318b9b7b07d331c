"""Instruction sets to test, and a kernel on one other than the fastest."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch
from torch.nn import functional

from quire.kernels import native_module, native_rows
from quire.kernels.panels import PANEL

P = ParamSpec("P")
T = TypeVar("T")

SETS = (*native_module.instruction_sets(), *native_module.emulated_sets())
TILES = {"emulated_tiles": "portable", "emulated_amx": "avx512_bf16", "amx": "avx512_bf16"}
"""Sets with tiles, and the rest of whose kernels they have: what computes a few rows, and single tokens."""
OTHERS = TILES | {"emulated_avx_vnni": "avx2"}
"""Where a set that only tests use has its other kernels from."""


def rows_of(instruction_set: str) -> str:
    """A set that can be in use."""
    return instruction_set if instruction_set in native_module.instruction_sets() else OTHERS[instruction_set]


def forced(instruction_set: str | None, function: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    before = native_module.current_instruction_set()
    native_module.use_instruction_set(instruction_set)
    try:
        return function(*args, **options)
    finally:
        native_module.use_instruction_set(before)


def assert_added_and_rounded_once(
    multiply: Callable[[torch.Tensor, bool], object], memory: torch.Tensor, edge: int
) -> None:
    """`multiply(output, adds)`, into all columns of `memory` but for `edge` on each side, which stay as they are."""
    middle = memory[:, edge:-edge]
    alone = torch.empty(middle.shape)
    multiply(alone, False)
    expected = memory.clone()
    expected[:, edge:-edge] = (middle.float() + alone).to(memory.dtype)
    multiply(middle, True)
    assert torch.equal(memory, expected)


GATES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": functional.relu,
}


def assert_let_through_and_rounded_once(
    found: torch.Tensor, multiply: Callable[[torch.dtype], torch.Tensor], kind: str, instruction_set: str
) -> None:
    """The gated halves of what `multiply(dtype)` gives. Of whole panels they are float32 until their product is rounded; others as `gated`
    makes them of what was stored."""
    width = found.shape[1]
    if found.dtype == torch.float32 or width % PANEL:
        both = multiply(found.dtype)
        gate, up = both[:, :width], both[:, width:]
        assert torch.equal(found, forced(instruction_set, native_rows.gated, gate, up, kind))
        return
    both = multiply(torch.float32).double()
    expected = GATES[kind](both[:, :width]) * both[:, width:]
    # Half of a bfloat16's last place, and a tenth of that for the function. Halves that were rounded before would be up to three times as far off.
    torch.testing.assert_close(found.double(), expected, rtol=1.1 * 2**-8, atol=1e-6)
