"""A kernel on an instruction set other than the fastest."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest

from quire.kernels import native

T = TypeVar("T")


def forced(instruction_set: str, function: Callable[[], T]) -> T:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "instruction_sets", lambda: (instruction_set,))
        return function()
