"""How long running sequences stall when a long prompt arrives: chunked prefill against whole prompts.

python -m benchmarks.chunked_prefill_gap [--model smollm2] [--dtype auto] [--chunk 128] [--output r.json] [--plot r.png]

8 sequences decode; once all stream, a 2,000-token prompt arrives. A gap is the time between two tokens of a running
sequence; the figure compared is the longest gap after the arrival.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.script import argument_parser, random_prompt, write_json

from quire import AsyncLLM, SamplingParams
from quire.bench.plot import BLUE, ORANGE
from quire.bench.statistics import spread
from quire.core.sampling_params import OutputKind

NUM_RUNNING, SHORT_PROMPT, LONG_PROMPT = 8, 64, 2000
TOKENS_BEFORE, TOKENS_AFTER = 16, 48


@dataclass
class Run:
    """Seconds since the long prompt arrived: each running sequence's tokens, and the long prompt's first token."""

    tokens: list[list[float]]
    long_ttft: float

    def gaps(self) -> list[tuple[float, float]]:
        """(when it ended, how long it was) of each gap that ended after the arrival."""
        pairs = (pair for times in self.tokens for pair in itertools.pairwise(times))
        return [(end, end - start) for start, end in pairs if end > 0]

    @property
    def longest_gap(self) -> float:
        return max(gap for _, gap in self.gaps())


async def measure(llm: Any, seed: int) -> Run:
    rng = random.Random(seed)
    vocab_size = llm.get_tokenizer().vocab_size

    arrivals: list[list[float]] = [[] for _ in range(NUM_RUNNING)]
    all_stream = asyncio.Event()

    async def run(index: int, token_ids: list[int]) -> None:
        async for _ in llm.generate(token_ids, params(TOKENS_BEFORE + TOKENS_AFTER)):
            arrivals[index].append(time.perf_counter())
            if min(map(len, arrivals)) >= TOKENS_BEFORE:
                all_stream.set()

    running = [
        asyncio.create_task(run(index, random_prompt(rng, SHORT_PROMPT, vocab_size))) for index in range(NUM_RUNNING)
    ]
    await all_stream.wait()
    arrival = time.perf_counter()
    long_ttft = 0.0
    async for _ in llm.generate(random_prompt(rng, LONG_PROMPT, vocab_size), params(1)):
        long_ttft = time.perf_counter() - arrival
    await asyncio.gather(*running)
    return Run([[moment - arrival for moment in times] for times in arrivals], long_ttft)


def params(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, output_kind=OutputKind.DELTA)


async def measure_modes(args: argparse.Namespace) -> dict[str, list[Run]]:
    """One engine a mode, in turns; the first round warms them up and is dropped."""
    async with (
        AsyncLLM(args.model, dtype=args.dtype, max_num_seqs=16, enable_chunked_prefill=False) as whole,
        AsyncLLM(args.model, dtype=args.dtype, max_num_seqs=16, max_num_batched_tokens=args.chunk) as chunked,
    ):
        engines = {"whole prompts": whole, f"chunks of {args.chunk}": chunked}
        runs: dict[str, list[Run]] = {name: [] for name in engines}
        for seed in range(args.repeats + 1):
            for name, llm in engines.items():
                runs[name].append(await measure(llm, seed))
        return {name: kept[1:] for name, kept in runs.items()}


def main() -> None:
    parser = argument_parser(__doc__, plot=True)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--chunk", type=int, default=128, help="token budget of a chunked step")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    modes = asyncio.run(measure_modes(args))
    longest = {name: spread([run.longest_gap for run in runs]) for name, runs in modes.items()}
    for name, runs in modes.items():
        gap, ttft = longest[name], spread([run.long_ttft for run in runs])
        print(
            f"{name:<15} longest gap {1000 * gap.median:7.1f} ms ({1000 * gap.low:.1f} to {1000 * gap.high:.1f}),"
            f" TTFT of the long prompt {1000 * ttft.median:7.1f} ms"
        )
    whole, chunked = (gap.median for gap in longest.values())
    print(f"the longest gap is {whole / chunked:.1f} times shorter with chunks")
    figures = {
        name: {"longest_gap_s": [run.longest_gap for run in runs], "long_ttft_s": [run.long_ttft for run in runs]}
        for name, runs in modes.items()
    }
    write_json(args.output, {"model": args.model, **figures, "ratio": whole / chunked})
    if args.plot is not None:
        plot(modes, args.plot)


def plot(modes: dict[str, list[Run]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots()
    for (name, runs), color in zip(modes.items(), (ORANGE, BLUE), strict=True):
        ends, gaps = zip(*sorted(runs[0].gaps()), strict=True)
        axes.plot(ends, [1000 * gap for gap in gaps], ".", color=color, label=name)
    axes.set_yscale("log")
    axes.set_xlabel(f"seconds after the {LONG_PROMPT:,}-token prompt arrived")
    axes.set_ylabel("gap between two tokens (ms)")
    axes.set_title(f"{NUM_RUNNING} running sequences while a long prompt is computed")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
