"""The real SmolLM2 and Gemma against transformers on the same dequantized weights.

The default run takes a sample; `nightly` takes all 32 prompts and 64 tokens of each.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.oracle import load_transformers
from benchmarks.peers.engines.quire import prompt_logprobs
from benchmarks.peers.engines.transformers import window_logprobs
from benchmarks.peers.text import Text
from benchmarks.quality import excerpts, greedy_agreement, text_perplexity, top1_agreement

from quire import LLM, SamplingParams

TEXT = (Path(__file__).parents[2] / "LICENSE").read_text()

pytestmark = pytest.mark.real


@pytest.fixture(params=["smollm2", "gemma3"])
def model(request: pytest.FixtureRequest) -> str:
    name: str = request.getfixturevalue(request.param)
    return name


def check_agreement(model: str, prompts: slice, num_tokens: int) -> None:
    with LLM(model, dtype="float32", max_model_len=4096, enable_prefix_caching=False) as llm:
        chosen = excerpts(llm.get_tokenizer().encode(TEXT))[prompts]
        found = greedy_agreement(llm, load_transformers(model), chosen, num_tokens)
    assert found["differences"] == 0, found
    assert found["ties"] <= found["positions"] / 100, found
    assert found["max_logprob_error"] < 1e-3, found


def test_greedy_tokens_and_logprobs_equal_transformers(model: str) -> None:
    check_agreement(model, slice(0, 20, 5), 12)


@pytest.mark.nightly
def test_all_prompts(model: str) -> None:
    check_agreement(model, slice(None), 64)


@pytest.mark.nightly
def test_perplexity_and_bfloat16(model: str) -> None:
    oracle = load_transformers(model)
    for dtype, tolerance in (("float32", 0.002), ("bfloat16", 0.02)):
        with LLM(model, dtype=dtype, max_model_len=4096, enable_prefix_caching=False) as llm:
            tokenizer = llm.get_tokenizer()
            text = Text(tokenizer.encode(TEXT, add_special_tokens=False), tuple(tokenizer.encode("")))
            windows = text.windows(512, 3 * 512)
            assert text_perplexity(prompt_logprobs(llm, windows)) == pytest.approx(
                text_perplexity(window_logprobs(oracle, windows)), rel=tolerance
            )
            agreement, _ = top1_agreement(llm, oracle, windows)
            assert agreement >= 0.97


def test_the_capital_of_france(smollm2: str) -> None:
    """The built-in template, the real weights, and the end-of-turn token at its end.

    In float32: the first two candidates lie 0.08 apart, less than one step of a bfloat16 logit of that size.
    """
    with LLM(smollm2, dtype="float32", max_model_len=512) as llm:
        output = llm.chat(
            [{"role": "user", "content": "What is the capital of France?"}],
            SamplingParams(temperature=0.0, max_tokens=32, skip_special_tokens=False),
            use_tqdm=False,
        )[0].outputs[0]
    assert output.text == "The capital of France is Paris.<|im_end|>"
    assert output.finish_reason == "stop"


def test_gemma_frees_what_its_windows_left(gemma3: str) -> None:
    """15 of 18 layers keep 512 tokens: a long sequence holds a fraction of what full attention would."""
    with LLM(gemma3, max_model_len=1600, max_num_batched_tokens=256) as llm:
        scheduler = llm._engine.client.engine.scheduler
        most_held = 0
        requests = llm._engine.inputs.process([2] + [1000] * 1500, SamplingParams(max_tokens=2))
        llm._engine.client.add_request(requests)
        while llm._engine.client.has_unfinished:
            llm._engine.client.step()
            most_held = max(most_held, scheduler.kv.pool.num_held)
    num_groups, blocks_of_all = 6, 1502 // 16 + 1
    assert most_held < 0.65 * num_groups * blocks_of_all
    assert scheduler.kv.pool.num_held == 0
