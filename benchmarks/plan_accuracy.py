"""The memory planner against reality: predicted and measured bytes of a busy engine, part by part of the prediction.

python -m benchmarks.plan_accuracy [--model smollm2] [--output result.json]

Each case runs in a process of its own, which fills its KV cache with sampled sequences at the full token budget. Measured
is that process's resident high-water mark, as the kernel keeps it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
from dataclasses import asdict, dataclass

from benchmarks.peers.process import peak_resident
from benchmarks.script import argument_parser, random_prompt, write_json

from quire import LLM, SamplingParams
from quire.checkpoint.checkpoint import open_checkpoint
from quire.plan.memory import Demand, memory_need, num_kv_blocks
from quire.plan.sizes import format_size


@dataclass(frozen=True)
class Case:
    """`num_seqs` sequences of `prompt_len` + `output_len` tokens run at once."""

    dtype: str
    num_seqs: int
    prompt_len: int
    output_len: int
    max_num_batched_tokens: int

    @property
    def max_model_len(self) -> int:
        return self.prompt_len + self.output_len

    def __str__(self) -> str:
        return (
            f"{self.dtype}, {self.num_seqs} x ({self.prompt_len} + {self.output_len}) tokens,"
            f" budget {self.max_num_batched_tokens}"
        )


CASES = [
    Case(dtype, num_seqs, prompt_len, output_len, budget)
    for dtype in ("float32", "bfloat16")
    for num_seqs, prompt_len, output_len, budget in ((1, 2000, 4, 2048), (12, 490, 14, 2048), (128, 32, 16, 512))
]
"""Outputs are long enough for the last sequence to start before the first has ended, so that all KV is in use."""


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--num-threads", type=int)
    parser.add_argument("--run-case", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run_case is not None:
        run_case(args.model, Case(**json.loads(args.run_case)), args.num_threads)
        return
    rows = []
    for case in CASES:
        predicted, measured = predict(args.model, case), measure(args.model, case, args.num_threads)
        error = predicted["total"] / measured - 1
        rows.append({**asdict(case), "predicted": predicted, "measured": measured, "error": error})
        parts = ", ".join(f"{name} {format_size(size)}" for name, size in predicted.items() if name != "total")
        print(
            f"{case}: predicted {format_size(predicted['total'])}, measured {format_size(measured)}"
            f" ({error:+.1%})  [{parts}]",
            flush=True,
        )
    worst = max(abs(row["error"]) for row in rows)
    print(f"largest error {worst:.1%}")
    write_json(args.output, {"model": args.model, "cases": rows})


def demand(case: Case) -> Demand:
    return Demand(
        dtype=case.dtype,
        max_model_len=case.max_model_len,
        concurrency=case.num_seqs,
        max_num_seqs=case.num_seqs,
        max_num_batched_tokens=case.max_num_batched_tokens,
    )


def predict(model: str, case: Case) -> dict[str, int]:
    """Bytes of each part, and in all."""
    need = memory_need(open_checkpoint(model, with_weights=False).config, demand(case))
    return {**asdict(need), "total": need.total}


def measure(model: str, case: Case, num_threads: int | None) -> int:
    """High-water mark of a process that runs the case."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.plan_accuracy",
        "--model",
        model,
        "--run-case",
        json.dumps(asdict(case)),
    ]
    command += [] if num_threads is None else ["--num-threads", str(num_threads)]
    return int(subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True).stdout)


def run_case(model: str, case: Case, num_threads: int | None) -> None:
    """Print the peak after sequences that all draw at once, which is the most that a step can need."""
    config = open_checkpoint(model, with_weights=False).config
    rng = random.Random(0)
    prompts = [random_prompt(rng, case.prompt_len, config.vocab_size) for _ in range(case.num_seqs)]
    params = SamplingParams(temperature=0.8, top_p=0.95, max_tokens=case.output_len, ignore_eos=True, seed=0)
    with LLM(
        model,
        dtype=case.dtype,
        max_model_len=case.max_model_len,
        num_blocks=num_kv_blocks(config, demand(case)),
        max_num_seqs=case.num_seqs,
        max_num_batched_tokens=case.max_num_batched_tokens,
        num_threads=num_threads,
    ) as llm:
        llm.generate(prompts, params, use_tqdm=False)
    print(peak_resident(os.getpid()))


if __name__ == "__main__":
    main()
