"""CVE-2026-53923: what an allocation held before is never part of an answer."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from quire import LLM, SamplingParams
from quire.core.native import has_native_module
from quire.kernels import array, recording
from quire.kernels.array import empty_array
from quire.kernels.dtype import DType

PROMPTS = [[1], [2] * 17, [3, 4] * 40, list(range(5, 250))]


@pytest.fixture
def poisoned_allocator() -> Iterator[None]:
    """Whatever torch.empty and its like return is full of NaN, or of the largest whole number."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        assert torch.empty(9).isnan().all()
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.fixture
def poisoned_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same of the native kernels' arrays, alone and in the arena of programs."""
    on_a_line, fresh_memory = array._on_a_line, recording.fresh_memory

    def poisoned_line(memory: npt.NDArray[np.uint8], *of: Any) -> Any:
        memory.fill(0xFF)
        return on_a_line(memory, *of)

    def poisoned_memory(num_bytes: int) -> mmap.mmap:
        memory = fresh_memory(num_bytes)
        np.frombuffer(memory, np.uint8).fill(0xFF)
        return memory

    monkeypatch.setattr(array, "_on_a_line", poisoned_line)
    monkeypatch.setattr(recording, "fresh_memory", poisoned_memory)
    assert np.isnan(empty_array((9,), DType.FLOAT32).stored).all()


def answers(model: Path, backend: str, **config: Any) -> list[object]:
    """Greedy and sampled ones, with everything that can be told about them; blocks are used again on the way."""
    greedy = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, logprobs=5, prompt_logprobs=2)
    sampled = SamplingParams(temperature=1, seed=7, n=3, top_p=0.9, max_tokens=40, ignore_eos=True, logprobs=5)
    with LLM(str(model), num_blocks=48, num_threads=1, backend=backend, **config) as llm:
        outputs = [
            output for params in (greedy, sampled, greedy) for output in llm.generate(PROMPTS, params, use_tqdm=False)
        ]
    return [(output.prompt_logprobs, [(s.token_ids, s.logprobs) for s in output.outputs]) for output in outputs]


@pytest.fixture(scope="module")
def expected(tiny_llama: Path) -> dict[str, list[object]]:
    return {backend: answers(tiny_llama, backend) for backend in ("reference", "torch")}


@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_cve_2026_53923_no_uninitialised_byte_reaches_an_output(
    tiny_llama: Path, expected: dict[str, list[object]], poisoned_allocator: None, backend: str
) -> None:
    assert answers(tiny_llama, backend) == expected[backend]


@pytest.mark.skipif(not has_native_module(), reason="the native kernels were not built")
@pytest.mark.parametrize("enforce_eager", [False, True])
@pytest.mark.parametrize(
    "config", [{"dtype": "float32"}, {"dtype": "bfloat16", "quantization": "int8", "kv_cache_dtype": "int8"}]
)
def test_cve_2026_53923_of_native_kernels(
    tiny_llama: Path, request: pytest.FixtureRequest, config: dict[str, Any], enforce_eager: bool
) -> None:
    expected = answers(tiny_llama, "cpu", **config)
    request.getfixturevalue("poisoned_arrays")
    assert answers(tiny_llama, "cpu", enforce_eager=enforce_eager, **config) == expected
