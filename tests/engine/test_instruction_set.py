"""--instruction-set reaches the kernels, and changes no answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from quire import LLM, SamplingParams
from quire.core.native import has_native_module
from quire.kernels import native

pytestmark = pytest.mark.skipif(not has_native_module(), reason="the native kernels were not built")

SETS = native.instruction_sets()


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    native.use_instruction_set(None)


PARAMS = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


def test_an_engine_runs_on_the_one_it_was_asked_for(tiny_llama: Path) -> None:
    answers = []
    for name in SETS:
        with LLM(str(tiny_llama), dtype="float32", num_blocks=32, instruction_set=name) as llm:
            assert native.instruction_sets()[0] == name
            answers.append(llm.generate([[1, 2, 3]], PARAMS, use_tqdm=False)[0].outputs[0].token_ids)
    assert answers == answers[:1] * len(SETS)


@pytest.mark.parametrize("enforce_eager", [False, True])
def test_each_engine_of_a_process_has_its_own(tiny_llama: Path, enforce_eager: bool) -> None:
    """The one it was asked for, or the fastest, in steps that come after another engine was made too."""

    def in_use(llm: LLM) -> str:
        llm.generate([[1, 2, 3]], PARAMS, use_tqdm=False)
        return native.instruction_sets()[0]

    def engine(instruction_set: str) -> LLM:
        return LLM(
            str(tiny_llama),
            dtype="float32",
            num_blocks=32,
            enforce_eager=enforce_eager,
            instruction_set=instruction_set,
        )

    with engine("portable") as asked, engine("auto") as plain:
        assert in_use(plain) == SETS[0]
        assert in_use(asked) == "portable"
        assert in_use(plain) == SETS[0]
