"""A kernel on an instruction set other than the fastest."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from quire.kernels import native

T = TypeVar("T")


def forced(instruction_set: str, function: Callable[[], T]) -> T:
    before = native.instruction_sets()[0]
    native.use_instruction_set(instruction_set)
    try:
        return function()
    finally:
        native.use_instruction_set(before)
