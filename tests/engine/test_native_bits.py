"""The real models on the native kernels: the same bits however a step is put together, whatever the weights are kept as."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.inside import runner_of
from tests.tiny_models import save_tiny_llama

from quire import LLM, SamplingParams
from quire.checkpoint.tokenizer_files import TokenizerFiles
from quire.core.native import has_native_module
from quire.core.outputs import RequestOutput
from quire.engine.tokenizer import Tokenizer
from quire.kernels.native_module import instruction_sets
from quire.plan.machine import read_machine
from quire.worker.step_programs import Wanted

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not has_native_module(), reason="the native kernels were not built"),
]


@pytest.fixture(scope="module", autouse=True)
def tokenizers_are_read_once() -> Iterator[None]:
    """Prompts are token ids here, and Gemma's 262,144 tokens take a second to read."""
    made: dict[str, Tokenizer] = {}

    def tokenizer(files: TokenizerFiles) -> Tokenizer:
        if files.source not in made:
            made[files.source] = Tokenizer(files)
        return made[files.source]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("quire.engine.launch.Tokenizer", tokenizer)
        yield


PROMPTS = [list(range(40 + 7 * i, 40 + 7 * i + length)) for i, length in enumerate((5, 70, 33, 17, 100))]
LONG_PROMPTS = [[40 + 7 * i % 900 for i in range(length)] for length in (1018, 2100)]
"""The first one's answer begins a second section of keys."""
PARAMS = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=2)


def answers(outputs: Sequence[RequestOutput]) -> list[Any]:
    """Tokens, and logprobs to the last bit."""
    return [
        (
            output.outputs[0].token_ids,
            [sorted((t, e.logprob) for t, e in p.items()) for p in output.outputs[0].logprobs],
        )
        for output in outputs
        if output.outputs[0].logprobs is not None
    ]


WEIGHTS: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "stored": {"dtype": "bfloat16", "quantization": "stored"},
    "int8": {"dtype": "float32", "quantization": "int8"},
    "int4": {"dtype": "bfloat16", "quantization": "int4"},
    "int8-kv": {"dtype": "bfloat16", "kv_cache_dtype": "int8"},
}


def run(model: str, prompts: list[list[int]] = PROMPTS, **config: Any) -> list[Any]:
    with LLM(model, backend="cpu", num_blocks=400, enable_prefix_caching=False, **config) as llm:
        found = answers(llm.generate(prompts, PARAMS, use_tqdm=False))  # type: ignore[arg-type]
        programs = runner_of(llm)._programs
        assert (programs is None) is config.get("enforce_eager", False)
        assert programs is None or {(True, Wanted.LOGITS), (False, Wanted.LOGITS)} <= set(programs._last_tokens)
        return found


@cache
def plainly(model: str, weights: str) -> tuple[Any, ...]:
    """The answers that all others have to equal: found once for all tests of this file."""
    return tuple(run(model, **WEIGHTS[weights]))


@pytest.mark.parametrize(
    ("model", "weights"),
    [
        *(("smollm2", weights) for weights in WEIGHTS),
        *(("gemma3", weights) for weights in ("bfloat16", "stored", "int8-kv")),
    ],
)
def test_the_bits_do_not_depend_on_batch_chunks_threads_blocks_or_programs(
    model: str, weights: str, request: pytest.FixtureRequest
) -> None:
    name, config = request.getfixturevalue(model), WEIGHTS[weights]
    expected = list(plainly(name, weights))
    assert len(expected) == len(PROMPTS)
    assert run(name, enforce_eager=True, **config) == expected
    assert run(name, max_num_batched_tokens=16, num_threads=1, **config) == expected
    assert run(name, max_num_seqs=1, **config) == expected
    assert run(name, block_size=48, **config) == expected
    with LLM(name, backend="cpu", num_blocks=400, **config) as llm:
        warm = [llm.generate(PROMPTS, PARAMS, use_tqdm=False) for _ in range(2)]  # type: ignore[arg-type]
    assert [answers(outputs) for outputs in warm] == [expected] * 2


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8"])
@pytest.mark.parametrize("quantization", ["none", "int8", "int8-g32", "int4", "int4-symmetric"])
@pytest.mark.parametrize("instruction_set", instruction_sets())
def test_the_bits_of_each_instruction_set(
    instruction_set: str, quantization: str, kv_cache_dtype: str, tiny_gemma: Path
) -> None:
    config = {
        "instruction_set": instruction_set,
        "quantization": quantization,
        "kv_cache_dtype": kv_cache_dtype,
        "dtype": "bfloat16",
    }
    expected = run(str(tiny_gemma), num_threads=2, **config)
    assert run(str(tiny_gemma), enforce_eager=True, num_threads=1, max_num_seqs=1, **config) == expected
    assert run(str(tiny_gemma), max_num_batched_tokens=17, num_threads=1, **config) == expected


@pytest.mark.parametrize("quantization", ["none", "int8"])
@pytest.mark.parametrize("instruction_set", instruction_sets())
def test_the_bits_of_layers_with_many_inputs(instruction_set: str, quantization: str, tmp_path: Path) -> None:
    """Whose rows are multiplied a stretch of their inputs at a time, but for 16 of them."""
    name = str(save_tiny_llama(tmp_path, intermediate_size=8448))
    config = {"instruction_set": instruction_set, "quantization": quantization, "dtype": "bfloat16"}
    expected = run(name, num_threads=2, **config)
    assert run(name, enforce_eager=True, num_threads=1, **config) == expected
    assert run(name, max_num_batched_tokens=16, num_threads=1, **config) == expected


@pytest.mark.parametrize(
    ("model", "weights"),
    [
        pytest.param("smollm2", "bfloat16", marks=pytest.mark.nightly),
        ("smollm2", "int8-kv"),
        ("gemma3", "bfloat16"),
    ],
)
def test_the_bits_of_long_contexts(
    model: str, weights: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows whose keys are divided among threads, and rows whose are not; with more threads than this machine may have CPUs."""
    machine = replace(read_machine(), num_cpus=16)
    monkeypatch.setattr("quire.engine.launch.read_machine", lambda: machine)
    name, config = request.getfixturevalue(model), WEIGHTS[weights]
    expected = run(name, LONG_PROMPTS, num_threads=2, **config)
    assert run(name, LONG_PROMPTS, max_num_seqs=1, max_num_batched_tokens=600, num_threads=3, **config) == expected
    assert run(name, LONG_PROMPTS, enforce_eager=True, num_threads=1, **config) == expected


@pytest.mark.parametrize(
    ("model", "weights"), [("smollm2", "float32"), ("smollm2", "bfloat16"), ("smollm2", "int8"), ("gemma3", "stored")]
)
def test_tokens_that_are_searched_for_are_those_of_all_logits(
    model: str, weights: str, request: pytest.FixtureRequest
) -> None:
    name, config = request.getfixturevalue(model), WEIGHTS[weights]
    expected = [tokens for tokens, _ in plainly(name, weights)]
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    with LLM(name, backend="cpu", num_blocks=400, **config) as llm:
        programs = runner_of(llm)._programs

        def kinds() -> set[tuple[bool, Wanted]]:
            return set(programs._last_tokens)

        while not programs._model.head.prepare_search():
            assert kinds() == set()
        for together in (1, 2, 4):
            found = [
                output.outputs[0].token_ids
                for first in range(0, len(PROMPTS), together)
                for output in llm.generate(PROMPTS[first : first + together], params, use_tqdm=False)  # type: ignore[arg-type]
            ]
            assert found == expected
            assert kinds() == {(False, Wanted.MOST_LIKELY), (True, Wanted.SEARCHED)}, (
                "a step of one token a row computed all logits"
            )
        outputs = llm.generate(PROMPTS, params, use_tqdm=False)  # type: ignore[arg-type]
        assert [output.outputs[0].token_ids for output in outputs] == expected
        assert kinds() == {(False, Wanted.MOST_LIKELY), (True, Wanted.SEARCHED), (True, Wanted.MOST_LIKELY)}, (
            "five rows were searched for together, or logits were kept for nobody"
        )


@pytest.mark.parametrize("model", ["smollm2", "gemma3"])
def test_texts_are_as_likely_as_with_floats(model: str, request: pytest.FixtureRequest) -> None:
    """Mean logprob of a text: 8-bit activations may cost 1 % of perplexity; a short text is judged more mildly."""
    name: str = request.getfixturevalue(model)
    text = "The sun rose over the sea, and the fishermen went out in their boats as they did every morning. " * 3
    means = {}
    for quantization in ("none", "stored"):
        with LLM(name, dtype="float32", quantization=quantization, num_blocks=100) as llm:
            output = llm.generate(text, SamplingParams(max_tokens=1, prompt_logprobs=0), use_tqdm=False)[0]
        assert output.prompt_logprobs is not None
        likely = [
            position[token].logprob
            for token, position in zip(output.prompt_token_ids, output.prompt_logprobs, strict=True)
            if position
        ]
        means[quantization] = sum(likely) / len(likely)
    assert means["none"] != means["stored"]
    assert abs(means["none"] - means["stored"]) < 0.05
