"""How close quire is to transformers on the same weights: tokens, logprobs, perplexity, bf16 agreement.

python -m benchmarks.quality --model smollm2
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import torch
from benchmarks.oracle import load_transformers
from benchmarks.peers.engines.quire import prompt_logprobs
from benchmarks.peers.engines.transformers import window_logprobs
from benchmarks.peers.quality import WINDOW, perplexity
from benchmarks.peers.text import fetch_text, read_text
from benchmarks.script import argument_parser, write_json
from transformers import PreTrainedModel

from quire import LLM, SamplingParams
from quire.checkpoint.cache_dir import cache_dir

TIE = 1e-4
NUM_TOKENS = 64
LENGTHS = [
    *(1, 2, 3, 5, 8, 15, 16, 17, 31, 33, 50, 64, 65, 100, 127, 129),
    *(150, 200, 256, 300, 350, 400, 511, 513, 600, 700, 800, 1000, 1200, 1500, 1800, 2000),
]


def excerpts(token_ids: list[int]) -> list[list[int]]:
    """One excerpt of the text for each length, from 1 to 2,000 tokens."""
    rng = random.Random(0)
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
            whole = torch.tensor([prompt + sample.token_ids[:-1]])
            logits = oracle(whole, logits_to_keep=len(sample.token_ids)).logits[0]
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


def text_perplexity(logprobs: list[list[float]]) -> float:
    return perplexity([value for window in logprobs for value in window])


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
    parser = argument_parser(__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--text", type=Path, help="a long text file (default: botchan.txt, fetched with sentencepiece)")
    arguments = parser.parse_args()
    oracle = load_transformers(arguments.model)
    result: dict[str, object] = {"model": arguments.model, "torch": torch.__version__}

    text = read_text(arguments.text or fetch_text(cache_dir() / "peers"), arguments.model)
    windows = text.windows(WINDOW, 3 * WINDOW)

    with LLM(arguments.model, dtype="float32", enable_prefix_caching=False) as llm:
        prompts = excerpts([*text.begin, *text.token_ids])
        result["float32"] = greedy_agreement(llm, oracle, prompts, NUM_TOKENS)
        ours, theirs = text_perplexity(prompt_logprobs(llm, windows)), text_perplexity(window_logprobs(oracle, windows))
        result["perplexity"] = {"quire": ours, "transformers": theirs, "relative": abs(ours / theirs - 1)}
    with LLM(arguments.model, dtype="bfloat16", enable_prefix_caching=False) as llm:
        agreement, total = top1_agreement(llm, oracle, text.windows(WINDOW, 9 * WINDOW))
        result["bfloat16"] = {"top1_agreement": agreement, "positions": total}
        result["bfloat16_perplexity"] = text_perplexity(prompt_logprobs(llm, windows))
    print(json.dumps(result, indent=2))
    write_json(arguments.output, result)


if __name__ == "__main__":
    main()
