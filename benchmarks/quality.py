"""How close quire is to transformers on the same weights: tokens, logprobs, perplexity, bf16 agreement.

python -m benchmarks.quality --model smollm2 --text botchan.txt
"""

from __future__ import annotations

import argparse
import json
import math
import random
from pathlib import Path

import torch
from benchmarks.oracle import load_transformers
from transformers import PreTrainedModel

from quire import LLM, SamplingParams

TIE = 1e-4
NUM_PROMPTS = 32
NUM_TOKENS = 64
LENGTHS = [
    1,
    2,
    3,
    5,
    8,
    15,
    16,
    17,
    31,
    33,
    50,
    64,
    65,
    100,
    127,
    129,
    150,
    200,
    256,
    300,
    350,
    400,
    511,
    513,
    600,
    700,
    800,
    1000,
    1200,
    1500,
    1800,
    2000,
]


def excerpts(token_ids: list[int], seed: int = 0) -> list[list[int]]:
    """One excerpt of the text for each length, from 1 to 2,000 tokens."""
    rng = random.Random(seed)
    starts = [rng.randrange(len(token_ids) - length) for length in LENGTHS]
    return [token_ids[start : start + length] for start, length in zip(starts, LENGTHS, strict=True)]


def greedy_agreement(llm: LLM, oracle: PreTrainedModel, prompts: list[list[int]], num_tokens: int) -> dict[str, float]:
    """quire's tokens are forced through the oracle: at each position the oracle's best must be quire's choice.

    Where it is not, the oracle's margin tells a tie (under 1e-4 in logprob) from a difference.
    """
    params = SamplingParams(temperature=0.0, max_tokens=num_tokens, logprobs=1, ignore_eos=True)
    outputs = llm.generate(prompts, params)
    ties = differences = positions = 0
    worst = 0.0
    for prompt, output in zip(prompts, outputs, strict=True):
        sample = output.outputs[0]
        with torch.inference_mode():
            logits = oracle(torch.tensor([prompt + sample.token_ids[:-1]])).logits[0, len(prompt) - 1 :]
        expected = torch.log_softmax(logits.double(), -1)
        for row, token_id, at_position in zip(expected, sample.token_ids, sample.logprobs or (), strict=True):
            positions += 1
            margin = (row.max() - row[token_id]).item()
            ties += 0 < margin <= TIE
            differences += margin > TIE
            worst = max(worst, abs(at_position[token_id].logprob - row[token_id].item()))
    return {
        "prompts": len(prompts),
        "positions": positions,
        "ties": ties,
        "differences": differences,
        "max_logprob_error": worst,
    }


def text_windows(token_ids: list[int], bos_token_id: int | None, num_windows: int) -> list[list[int]]:
    """Windows of 512 tokens; each begins with BOS where the model's tokenizer puts one before a text (Gemma)."""
    bos = token_ids[:1] if token_ids[0] == bos_token_id else []
    text, length = token_ids[len(bos) :], 512 - len(bos)
    return [bos + text[start : start + length] for start in range(0, num_windows * length, length)]


def quire_logprobs(llm: LLM, windows: list[list[int]]) -> list[list[float]]:
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    return [
        [
            position[token].logprob
            for token, position in zip(window[1:], (output.prompt_logprobs or [])[1:], strict=True)
            if position
        ]
        for window, output in zip(windows, llm.generate(windows, params), strict=True)
    ]


def oracle_logprobs(oracle: PreTrainedModel, windows: list[list[int]]) -> list[list[float]]:
    found = []
    for window in windows:
        with torch.inference_mode():
            logprobs = torch.log_softmax(oracle(torch.tensor([window])).logits[0].double(), -1)
        found.append(logprobs[torch.arange(len(window) - 1), torch.tensor(window[1:])].tolist())
    return found


def perplexity(logprobs: list[list[float]]) -> float:
    flat = [value for window in logprobs for value in window]
    return math.exp(-sum(flat) / len(flat))


def top1_agreement(llm: LLM, oracle: PreTrainedModel, windows: list[list[int]]) -> tuple[float, int]:
    """Share of positions where quire's most likely token is the float32 oracle's."""
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=1)
    agree = total = 0
    for window, output in zip(windows, llm.generate(windows, params), strict=True):
        with torch.inference_mode():
            best = oracle(torch.tensor([window])).logits[0].argmax(-1).tolist()
        for position, expected in zip((output.prompt_logprobs or [])[1:], best[:-1], strict=True):
            assert position is not None
            agree += next(token for token, entry in position.items() if entry.rank == 1) == expected
            total += 1
    return agree / total, total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--text", type=Path, required=True, help="a long text file (botchan.txt of sentencepiece)")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    oracle = load_transformers(arguments.model)
    result: dict[str, object] = {"model": arguments.model, "torch": torch.__version__}

    with LLM(arguments.model, dtype="float32", enable_prefix_caching=False) as llm:
        tokens = llm.get_tokenizer().encode(arguments.text.read_text())
        windows = text_windows(tokens, llm.get_tokenizer().bos_token_id, 3)
        result["float32"] = greedy_agreement(llm, oracle, excerpts(tokens), NUM_TOKENS)
        ours, theirs = perplexity(quire_logprobs(llm, windows)), perplexity(oracle_logprobs(oracle, windows))
        result["perplexity"] = {"quire": ours, "transformers": theirs, "relative": abs(ours / theirs - 1)}
    with LLM(arguments.model, dtype="bfloat16", enable_prefix_caching=False) as llm:
        agreement, total = top1_agreement(llm, oracle, text_windows(tokens, llm.get_tokenizer().bos_token_id, 9))
        result["bfloat16"] = {"top1_agreement": agreement, "positions": total}
        result["bfloat16_perplexity"] = perplexity(quire_logprobs(llm, windows))
    text = json.dumps(result, indent=2)
    print(text)
    if arguments.output:
        arguments.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
