"""quire against transformers on the same weights, interleaved, each engine in a process of its own.

python -m benchmarks.throughput_vs_transformers [--dtype bfloat16] [--output result.json] [--plot result.png]

32 requests of 128 to 512 random prompt tokens, 128 output tokens each, greedy. transformers runs in each of its modes:
one static batch, padded on the left (SDPA), and its continuous batching, where it works; the better one is what quire
is compared with. Every repeat runs all of them, one after the other, after a warm-up of each; a mode of transformers that was
not half as fast as the other in the first repeat is left out of the next ones. In one process the two OpenMP teams would put each
other's threads to sleep (docs/lab.md).
"""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path

import torch
from benchmarks.oracle import load_transformers
from benchmarks.peers.engines.transformers import continue_batch, greedy
from benchmarks.script import argument_parser, write_json

from quire import LLM
from quire.bench.environment import collect_environment
from quire.bench.measure import measure_throughput
from quire.bench.plot import BLUE, GREY
from quire.bench.statistics import Spread, spread
from quire.bench.workloads import BenchRequest, parse_lengths, synthetic_workload
from quire.checkpoint.checkpoint import open_checkpoint
from quire.plan.machine import read_machine

Run = Callable[[list[BenchRequest]], int]
"""Computes the workload and returns the number of output tokens."""


def static_batch(name: str, dtype: str) -> Run:
    model = load_transformers(name, getattr(torch, dtype))

    def run(workload: list[BenchRequest]) -> int:
        prompts = [request.prompt_token_ids for request in workload]
        return sum(map(len, continue_batch(model, prompts, workload[0].num_output_tokens)))

    return run


def continuous_batching(name: str, dtype: str) -> Run:
    # It warns in each run that there is no end-of-text token, which is what is wanted here.
    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.CRITICAL)
    model = load_transformers(name, getattr(torch, dtype))

    def run(workload: list[BenchRequest]) -> int:
        outputs = model.generate_batch(
            [request.prompt_token_ids for request in workload],
            generation_config=greedy(workload[0].num_output_tokens),
            progress_bar=False,
        )
        return sum(len(output.generated_tokens) for output in outputs.values())

    return run


def quire(name: str, dtype: str) -> Run:
    llm = LLM(name, dtype=dtype)

    def run(workload: list[BenchRequest]) -> int:
        return measure_throughput(llm, workload, show_progress=False).num_output_tokens

    return run


ENGINES: dict[str, Callable[[str, str], Run]] = {
    "quire": quire,
    "transformers, static batch": static_batch,
    "transformers, continuous batching": continuous_batching,
}


class Engine:
    """One of ENGINES, loaded in a process of its own. It computes nothing between its runs."""

    _run: Run
    """In the process: what was loaded there."""

    def __init__(self, name: str, model: str, dtype: str) -> None:
        self.name = name
        self._process = ProcessPoolExecutor(1, get_context("spawn"), Engine._load, (name, model, dtype))

    def run(self, workload: list[BenchRequest]) -> int:
        return self._process.submit(Engine._compute, workload).result()

    def stop(self) -> None:
        self._process.shutdown()

    @staticmethod
    def _load(name: str, model: str, dtype: str) -> None:
        torch.set_num_threads(read_machine().num_cores)
        Engine._run = staticmethod(ENGINES[name](model, dtype))

    @staticmethod
    def _compute(workload: list[BenchRequest]) -> int:
        return Engine._run(workload)


def start(args: argparse.Namespace, workload: list[BenchRequest]) -> list[Engine]:
    """The engines that work, after one run each of a small workload."""
    working = []
    for name in ENGINES:
        engine = Engine(name, args.model, args.dtype)
        try:
            assert engine.run([BenchRequest(request.prompt_token_ids, 4) for request in workload[:4]]) == 16
        except Exception as error:
            print(f"{name} does not run here: {type(error).__name__}: {error}")
            continue
        working.append(engine)
    return working


def without_the_slow(engines: list[Engine], speeds: dict[str, float]) -> list[Engine]:
    """Minutes saved: a mode so far behind will not be the best one."""
    best = max(speed for name, speed in speeds.items() if name != "quire")
    slow = [engine for engine in engines if engine.name != "quire" and speeds[engine.name] < best / 2]
    for engine in slow:
        engine.stop()
    return [engine for engine in engines if engine not in slow]


def main() -> None:
    parser = argument_parser(__doc__, plot=True)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--num-prompts", type=int, default=32)
    parser.add_argument("--input-len", type=parse_lengths, default="128:512")
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    output_len = parse_lengths(str(args.output_len))
    vocab_size = open_checkpoint(args.model, with_weights=False).config.vocab_size
    workload = synthetic_workload(vocab_size, args.num_prompts, args.input_len, output_len, 0)
    engines = start(args, workload)
    speeds: dict[str, list[float]] = {engine.name: [] for engine in engines}
    for repeat in range(args.repeats):
        for engine in engines:
            start_time = time.perf_counter()
            num_tokens = engine.run(workload)
            speeds[engine.name].append(num_tokens / (time.perf_counter() - start_time))
            print(f"repeat {repeat + 1}: {engine.name:<34} {speeds[engine.name][-1]:7.1f} output tok/s", flush=True)
        if repeat == 0:
            engines = without_the_slow(engines, {name: values[0] for name, values in speeds.items()})
    for engine in engines:
        engine.stop()
    report(args, workload, {name: spread(values) for name, values in speeds.items()})


def report(args: argparse.Namespace, workload: list[BenchRequest], speeds: dict[str, Spread]) -> None:
    best = max(speed.median for name, speed in speeds.items() if name != "quire")
    ratio = speeds["quire"].median / best
    num_input_tokens = sum(len(request.prompt_token_ids) for request in workload)
    print(f"\n{args.model}, {args.dtype}, {len(workload)} requests, {num_input_tokens:,} prompt tokens")
    for name, speed in speeds.items():
        print(f"{name:<34} {speed} output tok/s")
    print(f"quire is {ratio:.2f} times as fast as transformers' best mode")
    result = {
        "model": args.model,
        "dtype": args.dtype,
        "num_prompts": len(workload),
        "total_input_tokens": num_input_tokens,
        "output_throughput": {name: asdict(speed) for name, speed in speeds.items()},
        "ratio": ratio,
        "environment": collect_environment(),
    }
    write_json(args.output, result)
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
    bars = axes.barh(names, medians, xerr=[below, above], color=[BLUE if name == "quire" else GREY for name in names])
    axes.bar_label(bars, fmt="%.0f", padding=6)
    axes.set_xlim(0, 1.2 * max(medians))
    axes.set_xlabel("output tokens / s")
    axes.set_title(f"{args.model}, {args.dtype}, {args.num_prompts} requests at once")
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
