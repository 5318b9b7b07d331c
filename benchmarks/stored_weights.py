"""Weights as the file stores them against bfloat16, and recorded steps against steps from Python.

    python -m benchmarks.stored_weights --repeats 2

Each engine in a process of its own, in turn. One stream of 128 prompt tokens and 256 more, a prompt of 2,048, and 32
requests of 128 to 512 prompt tokens with 128 more each. Prints a line of JSON for each run.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import random
import time
from typing import Any

from quire import LLM, SamplingParams

VARIANTS: dict[str, dict[str, Any]] = {
    "bfloat16": {"dtype": "bfloat16"},
    "stored, from Python": {"quantization": "stored", "enforce_eager": True},
    "stored, recorded": {"quantization": "stored"},
}


def seconds(llm: LLM, prompts: list[list[int]], num_tokens: int) -> float:
    params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
    start = time.perf_counter()
    llm.generate(prompts, params, use_tqdm=False)  # type: ignore[arg-type]
    return time.perf_counter() - start


def measure(model: str, name: str) -> dict[str, Any]:
    logging.disable(logging.INFO)
    rng = random.Random(0)

    def prompt(length: int) -> list[int]:
        return [rng.randrange(10, 40_000) for _ in range(length)]

    with LLM(model, **VARIANTS[name]) as llm:
        seconds(llm, [prompt(128)], 8)  # the first step of each kind does more
        decode = [256 / (seconds(llm, [prompt(128)], 257) - seconds(llm, [prompt(128)], 1)) for _ in range(3)]
        prefill = [2048 / seconds(llm, [prompt(2048)], 1) for _ in range(3)]
        batch = seconds(llm, [prompt(rng.randrange(128, 512)) for _ in range(32)], 128)
    return {
        "engine": name,
        "decode_tok_s": sorted(round(rate, 1) for rate in decode)[1],
        "prefill_tok_s": sorted(round(rate) for rate in prefill)[1],
        "batch_out_tok_s": round(32 * 128 / batch, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--repeats", type=int, default=2)
    arguments = parser.parse_args()
    for _ in range(arguments.repeats):
        for name in VARIANTS:
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(json.dumps(pool.apply(measure, (arguments.model, name))), flush=True)


if __name__ == "__main__":
    main()
