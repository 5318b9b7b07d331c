"""The table that control chooses from is what the kernels were compiled for, and the chosen set is what runs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from quire.core.native import has_native_module, instruction_sets
from quire.errors import InvalidRequestError
from quire.kernels import native_linear, native_module, native_rows
from quire.kernels.dtype import dtype_of
from quire.plan.machine import read_machine

pytestmark = pytest.mark.skipif(not has_native_module(), reason="the native kernels were not built")

SETS = native_module.instruction_sets()


def test_control_and_the_kernels_agree_on_what_this_cpu_has() -> None:
    assert instruction_sets(read_machine().cpu_features) == SETS


def test_one_that_the_cpu_lacks_is_refused_with_those_it_has() -> None:
    with pytest.raises(InvalidRequestError, match=f"sve9 cannot be used: this CPU has {', '.join(SETS)}"):
        native_module.use_instruction_set("sve9")


@pytest.mark.parametrize("chosen", SETS)
def test_every_kernel_runs_on_the_chosen_one(chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    native_module.use_instruction_set(chosen)
    asked = Spy(native_module.module())
    for users in (native_linear, native_rows):
        monkeypatch.setattr(users, "module", lambda: asked)
    x = torch.ones(2, 32)
    native_rows.add(x, x)
    native_rows.scale(x, 2.0)
    native_rows.rms_norm(x, x[0], 1e-5)
    native_linear.linear(x, native_linear.pack_(native_linear.empty_dense(16, 32, dtype_of(x.dtype))))
    assert asked.names == [chosen] * 5


def test_without_a_name_the_fastest_is_used_again_and_other_threads_keep_theirs() -> None:
    native_module.use_instruction_set("portable")
    with ThreadPoolExecutor(1) as other:
        assert other.submit(native_module.current_instruction_set).result() == SETS[0]
    assert native_module.current_instruction_set() == "portable"
    native_module.use_instruction_set(None)
    assert native_module.current_instruction_set() == SETS[0]


class Spy:
    """The native module, noting the instruction set of each call."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self.names: list[str] = []

    def __getattr__(self, kernel: str) -> Any:
        function = getattr(self._module, kernel)

        def call(*args: Any, **options: Any) -> Any:
            self.names += [value for value in (*args, *options.values()) if isinstance(value, str)]
            return function(*args, **options)

        return call
