"""The memory planner against reality: predicted and measured bytes of a busy engine, part by part of the prediction.

python -m benchmarks.plan_accuracy [--model smollm2] [--backend torch] [--output result.json]

Each case runs in a process of its own, which fills its KV cache with sampled sequences at the full token budget. Measured
is that process's resident high-water mark, as the kernel keeps it.
"""

from __future__ import annotations

import logging
import os
import random
from dataclasses import asdict, dataclass

from benchmarks.peers.process import peak_resident
from benchmarks.script import argument_parser, in_own_process, random_prompt, write_json

from quire import LLM, SamplingParams
from quire.checkpoint.checkpoint import open_checkpoint
from quire.plan.memory import Demand, memory_need, num_kv_blocks
from quire.plan.sizes import format_size


@dataclass(frozen=True, kw_only=True)
class Case:
    """`num_seqs` sequences of `prompt_len` + `output_len` tokens run at once."""

    dtype: str
    quantization: str = "none"
    kv_cache_dtype: str = "auto"
    num_seqs: int
    prompt_len: int
    output_len: int
    max_num_batched_tokens: int

    @property
    def max_model_len(self) -> int:
        return self.prompt_len + self.output_len

    def __str__(self) -> str:
        return (
            f"{self.dtype}, weights {self.quantization}, KV {self.kv_cache_dtype}, {self.num_seqs} x ({self.prompt_len} +"
            f" {self.output_len}) tokens, budget {self.max_num_batched_tokens}"
        )


KEPT = {
    "torch": [("float32", "none", "auto"), ("bfloat16", "none", "auto")],
    "cpu": [
        ("float32", "none", "auto"),
        ("bfloat16", "none", "auto"),
        ("bfloat16", "stored", "auto"),
        ("bfloat16", "int8", "int8"),
    ],
}
"""By backend: the dtype, how weights are kept, and keys and values."""

SIZES = [(1, 32, 4, 512), (1, 2000, 4, 512), (1, 2000, 4, 2048), (12, 490, 14, 2048), (128, 32, 16, 512)]
"""Outputs are long enough for the last sequence to start before the first has ended, so that all KV is in use."""


def cases(backend: str) -> list[Case]:
    return [
        Case(
            dtype=dtype,
            quantization=quantization,
            kv_cache_dtype=kv_cache_dtype,
            num_seqs=num_seqs,
            prompt_len=prompt_len,
            output_len=output_len,
            max_num_batched_tokens=budget,
        )
        for dtype, quantization, kv_cache_dtype in KEPT[backend]
        for num_seqs, prompt_len, output_len, budget in SIZES
    ]


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--backend", choices=KEPT, default="cpu", help="(%(default)s)")
    parser.add_argument("--num-threads", type=int)
    args = parser.parse_args()
    rows = []
    for kept in {(case.dtype, case.quantization): case for case in cases(args.backend)}.values():
        in_own_process(peak_bytes, args.model, args.backend, kept, args.num_threads)  # A first start may pack weights.
    for case in cases(args.backend):
        predicted = predict(args.model, args.backend, case)
        measured = in_own_process(peak_bytes, args.model, args.backend, case, args.num_threads)
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
    write_json(args.output, {"model": args.model, "backend": args.backend, "cases": rows})


def demand(backend: str, case: Case) -> Demand:
    return Demand(
        dtype=case.dtype,
        native=backend == "cpu",
        quantization=case.quantization,
        kv_cache_dtype=case.kv_cache_dtype,
        max_model_len=case.max_model_len,
        concurrency=case.num_seqs,
        max_num_seqs=case.num_seqs,
        max_num_batched_tokens=case.max_num_batched_tokens,
    )


def predict(model: str, backend: str, case: Case) -> dict[str, int]:
    """Bytes of each part, and in all."""
    need = memory_need(open_checkpoint(model, with_weights=False).config, demand(backend, case))
    return {**asdict(need), "total": need.total}


def peak_bytes(model: str, backend: str, case: Case, num_threads: int | None) -> int:
    """Of this process, after sequences that all draw at once, which is the most that a step can need, and one that takes the most
    likely tokens."""
    logging.disable(logging.INFO)
    config = open_checkpoint(model, with_weights=False).config
    rng = random.Random(0)
    prompts = [random_prompt(rng, case.prompt_len, config.vocab_size) for _ in range(case.num_seqs)]
    params = SamplingParams(temperature=0.8, top_p=0.95, max_tokens=case.output_len, ignore_eos=True, seed=0)
    with LLM(
        model,
        backend=backend,
        dtype=case.dtype,
        quantization=case.quantization,
        kv_cache_dtype=case.kv_cache_dtype,
        max_model_len=case.max_model_len,
        num_blocks=num_kv_blocks(config, demand(backend, case)),
        max_num_seqs=case.num_seqs,
        max_num_batched_tokens=case.max_num_batched_tokens,
        num_threads=num_threads,
    ) as llm:
        llm.generate(prompts, params, use_tqdm=False)
        # What is made to search for most likely tokens stays.
        llm.generate(prompts[:1], SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True), use_tqdm=False)
    return peak_resident(os.getpid())


if __name__ == "__main__":
    main()
