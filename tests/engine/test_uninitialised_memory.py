"""CVE-2026-53923: what an allocation held before is never part of an answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from quire import LLM, SamplingParams

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


def answers(model: Path, backend: str) -> list[object]:
    """Greedy and sampled ones, with everything that can be told about them; blocks are used again on the way."""
    greedy = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, logprobs=5, prompt_logprobs=2)
    sampled = SamplingParams(temperature=1, seed=7, n=3, top_p=0.9, max_tokens=40, ignore_eos=True, logprobs=5)
    with LLM(str(model), num_blocks=48, num_threads=1, backend=backend) as llm:
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
