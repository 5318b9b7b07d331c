"""Weights as the file stores them against bfloat16, and recorded steps against steps from Python.

    python -m benchmarks.stored_weights --repeats 2

Each engine in a process of its own, in turn. One stream of 128 prompt tokens and 256 more, a prompt of 2,048, and 32
requests of 128 to 512 prompt tokens with 128 more each. Prints a line of JSON for each run.
"""

from __future__ import annotations

import json
import logging
import random
import time
from typing import Any

from benchmarks.script import argument_parser, in_own_process, random_prompt, write_json

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

    with LLM(model, **VARIANTS[name]) as llm:
        seconds(llm, [random_prompt(rng, 128)], 8)  # the first step of each kind does more
        decode = [
            256 / (seconds(llm, [random_prompt(rng, 128)], 257) - seconds(llm, [random_prompt(rng, 128)], 1))
            for _ in range(3)
        ]
        prefill = [2048 / seconds(llm, [random_prompt(rng, 2048)], 1) for _ in range(3)]
        batch = seconds(llm, [random_prompt(rng, rng.randrange(128, 512)) for _ in range(32)], 128)
    return {
        "engine": name,
        "decode_tok_s": sorted(round(rate, 1) for rate in decode)[1],
        "prefill_tok_s": sorted(round(rate) for rate in prefill)[1],
        "batch_out_tok_s": round(32 * 128 / batch, 1),
    }


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--repeats", type=int, default=2)
    arguments = parser.parse_args()
    runs = []
    for _ in range(arguments.repeats):
        for name in VARIANTS:
            runs.append(in_own_process(measure, arguments.model, name))
            print(json.dumps(runs[-1]), flush=True)
    write_json(arguments.output, runs)


if __name__ == "__main__":
    main()
