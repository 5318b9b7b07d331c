"""--instruction-set reaches the kernels of its engine, and changes an answer no more than rounding does."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tests.tiny_models import save_tiny_llama

from quire import LLM, SamplingParams
from quire.core.native import has_native_module
from quire.kernels import native_module

pytestmark = pytest.mark.skipif(not has_native_module(), reason="the native kernels were not built")

SETS = native_module.instruction_sets()


PARAMS = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, prompt_logprobs=0)
PROMPT = [(7 * i) % 250 for i in range(100)]
KINDS: dict[str, tuple[dict[str, Any], float]] = {
    "float32": ({"dtype": "float32"}, 1e-3),
    "bfloat16": ({"dtype": "bfloat16"}, 0.2),
    "int8": ({"dtype": "bfloat16", "quantization": "int8", "kv_cache_dtype": "int8"}, 0.5),
}
"""With how far logprobs may be from float32's on average, of a model that is as sensitive as random weights make it."""


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Heads of 64 dimensions, which tiles are for, and weights that can be rounded."""
    return save_tiny_llama(
        tmp_path_factory.mktemp("llama"),
        hidden_size=128,
        intermediate_size=192,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=64,
    )


@pytest.fixture(scope="module")
def in_float32(llama: Path) -> tuple[list[int], list[float]]:
    with LLM(str(llama), dtype="float32", backend="reference", num_blocks=32) as llm:
        return likely(llm)


def likely(llm: LLM) -> tuple[list[int], list[float]]:
    """An answer, and the logprobs of its prompt's tokens."""
    (output,) = llm.generate([PROMPT], PARAMS, use_tqdm=False)
    assert output.prompt_logprobs is not None
    entries = zip(PROMPT[1:], output.prompt_logprobs[1:], strict=True)
    logprobs = [found[token].logprob for token, found in entries if found is not None]
    assert len(logprobs) == len(PROMPT) - 1
    return output.outputs[0].token_ids, logprobs


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("kind", KINDS)
def test_an_engine_runs_on_the_one_it_was_asked_for(llama: Path, in_float32: Any, kind: str, name: str) -> None:
    """Nearly as in float32, and with the same bits in chunks that are not recorded."""
    settings, tolerance = KINDS[kind]
    answers = []
    for how in ({}, {"enforce_eager": True, "max_num_batched_tokens": 33}):
        with LLM(str(llama), num_blocks=32, instruction_set=name, **settings, **how) as llm:
            answers.append(likely(llm))
            assert native_module.current_instruction_set() == name
    assert answers[1] == answers[0]
    tokens, logprobs = in_float32
    if kind == "float32":
        assert answers[0][0] == tokens
    assert np.abs(np.subtract(answers[0][1], logprobs)).mean() < tolerance


@pytest.mark.parametrize("enforce_eager", [False, True])
def test_each_engine_of_a_process_has_its_own(tiny_llama: Path, enforce_eager: bool) -> None:
    """The one it was asked for, or the fastest, in steps that come after another engine was made too."""

    def in_use(llm: LLM) -> str:
        llm.generate([[1, 2, 3]], PARAMS, use_tqdm=False)
        return native_module.current_instruction_set()

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


class Spy:
    """The native module, with a list of what was called and on which instruction set."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self.sets: dict[str, set[str]] = {}

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._module, name)
        if isinstance(found, type) or not callable(found):
            return found

        def call(*arguments: Any, **options: Any) -> Any:
            given = {value for value in (*arguments, *options.values()) if isinstance(value, str) and value in SETS}
            if given:
                self.sets.setdefault(name, set()).update(given)
            return found(*arguments, **options)

        return call


@pytest.mark.parametrize("chosen", SETS)
@pytest.mark.parametrize("enforce_eager", [False, True])
def test_every_kernel_of_an_engine_runs_on_the_chosen_one(
    chosen: str, enforce_eager: bool, llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spy = Spy(native_module.module())
    for name, module in list(sys.modules.items()):
        if name.startswith("quire.kernels.") and name != "quire.kernels.native_module" and hasattr(module, "module"):
            monkeypatch.setattr(module, "module", lambda: spy)
    greedy = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    drawn = SamplingParams(
        temperature=1, top_p=0.9, seed=1, max_tokens=4, ignore_eos=True, logprobs=2, presence_penalty=1
    )
    config: dict[str, Any] = {"instruction_set": chosen, "num_blocks": 64, "enforce_eager": enforce_eager}
    for kind in ({"dtype": "float32"}, {"dtype": "bfloat16", "quantization": "int8", "kv_cache_dtype": "int8"}):
        with LLM(str(llama), **config, **kind) as llm:
            llm.generate([PROMPT], greedy, use_tqdm=False)
            llm.generate([PROMPT, [1, 2, 3]], drawn, use_tqdm=False)
    assert set().union(*spy.sets.values()) == {chosen}
    assert {"attend", "round_rows", "draw", "penalize", "logprobs"} <= spy.sets.keys()
    assert len(spy.sets) >= 15, sorted(spy.sets)
