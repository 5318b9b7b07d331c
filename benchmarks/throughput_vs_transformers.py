"""quire against transformers on the same weights, interleaved in one process.

python -m benchmarks.throughput_vs_transformers [--dtype bfloat16] [--output result.json] [--plot result.png]

32 requests of 128 to 512 random prompt tokens, 128 output tokens each, greedy. transformers runs in each of its modes:
one static batch, padded on the left (SDPA), and its continuous batching, where it works; the better one is what quire
is compared with. Every repeat runs all of them, one after the other, after a warm-up of each; a mode of transformers that was
not half as fast as the other in the first repeat is left out of the next ones.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from benchmarks.oracle import load_transformers
from transformers import GenerationConfig, PreTrainedModel

from quire import LLM
from quire.bench.environment import collect_environment
from quire.bench.measure import measure_throughput
from quire.bench.statistics import Spread, spread
from quire.bench.workloads import BenchRequest, parse_lengths, synthetic_workload
from quire.plan.machine import read_machine

PAD = 0


@dataclass(frozen=True)
class Engine:
    """`run` computes the workload and returns the number of output tokens."""

    name: str
    run: Callable[[list[BenchRequest]], int]


def static_batch(model: PreTrainedModel) -> Engine:
    def run(workload: list[BenchRequest]) -> int:
        width = max(len(request.prompt_token_ids) for request in workload)
        padded = [[PAD] * (width - len(request.prompt_token_ids)) + request.prompt_token_ids for request in workload]
        mask = [[int(i >= width - len(r.prompt_token_ids)) for i in range(width)] for r in workload]
        num_tokens = workload[0].num_output_tokens
        output = model.generate(
            torch.tensor(padded),
            attention_mask=torch.tensor(mask),
            generation_config=greedy(num_tokens),
        )
        return (output.shape[1] - width) * len(workload)

    return Engine("transformers, static batch", run)


def continuous_batching(model: PreTrainedModel) -> Engine:
    def run(workload: list[BenchRequest]) -> int:
        outputs = model.generate_batch(
            [request.prompt_token_ids for request in workload],
            generation_config=greedy(workload[0].num_output_tokens),
            progress_bar=False,
        )
        return sum(len(output.generated_tokens) for output in outputs.values())

    return Engine("transformers, continuous batching", run)


def greedy(num_tokens: int) -> GenerationConfig:
    """Exactly `num_tokens` tokens: no id ends a sequence."""
    return GenerationConfig(
        do_sample=False, max_new_tokens=num_tokens, eos_token_id=None, pad_token_id=PAD, use_cache=True
    )


def quire_engine(llm: LLM) -> Engine:
    def run(workload: list[BenchRequest]) -> int:
        return measure_throughput(llm, workload, show_progress=False).num_output_tokens

    return Engine("quire", run)


def warm_up(engines: list[Engine], workload: list[BenchRequest]) -> list[Engine]:
    """The engines that work, after one run each of a small workload."""
    working = []
    for engine in engines:
        try:
            assert engine.run([BenchRequest(request.prompt_token_ids, 4) for request in workload[:4]]) == 16
        except Exception as error:
            print(f"{engine.name} does not run here: {type(error).__name__}: {error}")
            continue
        working.append(engine)
    return working


def without_the_slow(engines: list[Engine], speeds: dict[str, float]) -> list[Engine]:
    """Minutes saved: a mode so far behind will not be the best one."""
    best = max(speed for name, speed in speeds.items() if name != "quire")
    return [engine for engine in engines if engine.name == "quire" or speeds[engine.name] >= best / 2]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--num-prompts", type=int, default=32)
    parser.add_argument("--input-len", type=parse_lengths, default="128:512")
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    # It warns in each run that there is no end-of-text token, which is what is wanted here.
    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.CRITICAL)
    llm = LLM(args.model, dtype=args.dtype)
    model = load_transformers(args.model, getattr(torch, args.dtype))
    output_len = parse_lengths(str(args.output_len))
    workload = synthetic_workload(llm.get_tokenizer().vocab_size, args.num_prompts, args.input_len, output_len, 0)
    engines = warm_up([quire_engine(llm), static_batch(model), continuous_batching(model)], workload)
    speeds: dict[str, list[float]] = {engine.name: [] for engine in engines}
    for repeat in range(args.repeats):
        for engine in engines:
            start = time.perf_counter()
            num_tokens = engine.run(workload)
            speeds[engine.name].append(num_tokens / (time.perf_counter() - start))
            print(f"repeat {repeat + 1}: {engine.name:<34} {speeds[engine.name][-1]:7.1f} output tok/s", flush=True)
        if repeat == 0:
            engines = without_the_slow(engines, {name: values[0] for name, values in speeds.items()})
    report(args, workload, {name: spread(values) for name, values in speeds.items()})


def report(args: argparse.Namespace, workload: list[BenchRequest], speeds: dict[str, Spread]) -> None:
    best = max(speed.median for name, speed in speeds.items() if name != "quire")
    ratio = speeds["quire"].median / best
    num_input_tokens = sum(len(request.prompt_token_ids) for request in workload)
    print(f"\n{args.model}, {args.dtype}, {len(workload)} requests, {num_input_tokens:,} prompt tokens")
    for name, speed in speeds.items():
        print(f"{name:<34} {speed} output tok/s")
    print(f"quire is {ratio:.2f} times as fast as transformers' best mode")
    if args.output is not None:
        result = {
            "model": args.model,
            "dtype": args.dtype,
            "num_prompts": len(workload),
            "total_input_tokens": num_input_tokens,
            "output_throughput": {name: asdict(speed) for name, speed in speeds.items()},
            "ratio": ratio,
            "environment": collect_environment(read_machine()),
        }
        args.output.write_text(json.dumps(result, indent=2) + "\n")
    if args.plot is not None:
        plot(args, speeds, args.plot)


def plot(args: argparse.Namespace, speeds: dict[str, Spread], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3), layout="constrained")
    axes = figure.subplots()
    names = list(reversed(speeds))
    medians = [speeds[name].median for name in names]
    below = [speeds[name].median - speeds[name].low for name in names]
    above = [speeds[name].high - speeds[name].median for name in names]
    bars = axes.barh(
        names, medians, xerr=[below, above], color=["#3b6ea5" if n == "quire" else "#bbbbbb" for n in names]
    )
    axes.bar_label(bars, fmt="%.0f", padding=6)
    axes.set_xlim(0, 1.2 * max(medians))
    axes.set_xlabel("output tokens / s")
    axes.set_title(f"{args.model}, {args.dtype}, {args.num_prompts} requests at once")
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
