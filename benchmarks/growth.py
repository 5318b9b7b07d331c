"""How a decoding step's time grows with context and with batch, beside what the machine's memory and arithmetic allow.

    python -m benchmarks.growth --plot benchmarks/img/growth.png --output benchmarks/results/growth.json
                                                                            (some 3 minutes on two idle cores)

One engine a variant, in turn, each in a process of its own. A point is the median step once every row of it decodes. The
model of the machine: a step reads all weights and the KV of its rows once at the bandwidth that reading a large tensor
reaches, and multiplies at the rate of large matrix products; the longer of the two counts. Beside each point stands the
exponent of the growth since the one before it: above 1 the time grows faster than what causes it, which is a cliff. A point
far above what its neighbours let one expect falls off; such points are named once more at the end.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import random
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.machine import describe, measure_limits
from benchmarks.peers.roofline import MachineLimits
from benchmarks.script import argument_parser, in_own_process, random_prompt, write_json

from quire import AsyncLLM, SamplingParams
from quire.bench.plot import BLUE, ORANGE
from quire.checkpoint.checkpoint import open_checkpoint
from quire.checkpoint.model_config import ModelConfig
from quire.core.sampling_params import OutputKind

VARIANTS: dict[str, dict[str, Any]] = {
    "bfloat16": {"dtype": "bfloat16", "quantization": "none"},
    "stored": {"quantization": "stored"},
}
COLORS = {"bfloat16": BLUE, "stored": ORANGE}
CONTEXTS = (128, 256, 512, 1024, 2048, 4096, 8192)
BATCHES = (1, 2, 4, 8, 16, 32, 64)
NUM_STEPS = 16
BITS, MEMORY_BYTES = 32, 2**29
"""What is read to learn the memory's rate: float32, and far more than the processor's caches hold."""
BATCH_CONTEXT = 128
CLIFF = 1.15
"""Exponents up to this are noise."""
FALLS_OFF = 1.5
"""From this many times what its neighbours let one expect on, a point falls off."""


@dataclass(frozen=True)
class Point:
    """Contexts are in the middle of the steps measured. Times are in milliseconds a step."""

    context: int
    batch: int
    measured: float
    model: float


def roofline(machine: MachineLimits, model: ModelConfig, variant: str, context: int, batch: int) -> float:
    """Seconds of one step. Windows are left out: these models' layers see everything."""
    stored = variant == "stored"
    weights = model.quantized_bytes if stored else 2 * model.num_parameters()
    assert weights is not None
    kv_values = 2 * model.num_layers * model.num_kv_heads * model.head_dim * context * batch
    reading = (weights + 2 * kv_values) / machine.bandwidth[BITS]
    products = 2 * model.num_parameters() * batch
    attention = 4 * model.num_layers * model.num_heads * model.head_dim * context * batch
    rate = machine.matmul["int8" if stored else "bfloat16"]
    return max(reading, products / rate + attention / machine.matmul["float32"])


async def step_seconds(llm: Any, prompts: list[list[int]]) -> float:
    """Median time between two tokens of the first sequence while all decode."""
    arrivals = await stream(llm, prompts, 2 * NUM_STEPS)
    begin, end = max(times[0] for times in arrivals), min(times[-1] for times in arrivals)
    steps = [later - earlier for earlier, later in itertools.pairwise(arrivals[0]) if begin <= earlier and later <= end]
    return statistics.median(steps)


async def stream(llm: Any, prompts: list[list[int]], num_tokens: int) -> list[list[float]]:
    """When each token of each answer came."""
    params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True, output_kind=OutputKind.DELTA)
    arrivals: list[list[float]] = [[] for _ in prompts]

    async def run(index: int) -> None:
        async for _ in llm.generate(prompts[index], params):
            arrivals[index].append(time.perf_counter())

    await asyncio.gather(*(run(index) for index in range(len(prompts))))
    return arrivals


async def measure(
    model: str, variant: str, repeats: int, limits: tuple[int, int]
) -> dict[str, list[tuple[int, int, float]]]:
    """(context, batch, seconds) of each point of the two sweeps."""
    rng = random.Random(0)
    async with AsyncLLM(model, **VARIANTS[variant]) as llm:
        longest = min(limits[0], llm.info.max_model_len)
        text = random_prompt(rng, longest)
        short = [random_prompt(rng, BATCH_CONTEXT - NUM_STEPS) for _ in range(max(BATCHES))]
        contexts = [min(context, longest - NUM_STEPS) for context in CONTEXTS if context <= longest]
        # Prompts begin alike: the KV of the shorter ones is found again, and the first run fills it in.
        by_context = {(context, 1): [text[: context - NUM_STEPS]] for context in contexts}
        by_batch = {(BATCH_CONTEXT, batch): short[:batch] for batch in BATCHES if batch <= limits[1]}
        return {
            name: [(*place, await median_step(llm, prompts, repeats)) for place, prompts in sweep.items()]
            for name, sweep in (("context", by_context), ("batch", by_batch))
        }


async def median_step(llm: Any, prompts: list[list[int]], repeats: int) -> float:
    await stream(llm, prompts, 2)
    return statistics.median([await step_seconds(llm, prompts) for _ in range(repeats)])


def measure_variant(
    model: str, variant: str, repeats: int, limits: tuple[int, int]
) -> dict[str, list[tuple[int, int, float]]]:
    logging.disable(logging.INFO)
    return asyncio.run(measure(model, variant, repeats, limits))


def exponent(before: Point, after: Point, sweep: str) -> float:
    growth = getattr(after, sweep) / getattr(before, sweep)
    return math.log(after.measured / before.measured) / math.log(growth)


def expected(places: list[int], times: list[float], index: int) -> float:
    """What its neighbours let one expect: between two of them a straight line of logarithms; the first takes no longer than
    the one after it, and the last grows no faster than what causes it. What it is itself where there is no other."""
    if len(places) == 1:
        return times[0]
    if index == 0:
        return times[1]
    if index == len(places) - 1:
        return times[-2] * places[-1] / places[-2]
    before, here, after = (math.log(place) for place in places[index - 1 : index + 2])
    share = (here - before) / (after - before)
    return math.exp((1 - share) * math.log(times[index - 1]) + share * math.log(times[index + 1]))


def above_neighbours(points: list[Point], sweep: str) -> list[float]:
    """How many times what its neighbours let one expect each point takes."""
    places, times = [getattr(point, sweep) for point in points], [point.measured for point in points]
    return [point.measured / expected(places, times, index) for index, point in enumerate(points)]


def print_sweep(variant: str, sweep: str, points: list[Point]) -> list[str]:
    """Returns the names of the points that fall off."""
    columns = f"{'ms/step':>9} {'model':>9} {'share':>6} {'by neighbours':>13} {'us each more':>13} {'exponent':>9}"
    print(f"\n{variant}, by {sweep}\n{sweep:>8} {columns}")
    fallen = []
    for before, after, times in zip([None, *points], points, above_neighbours(points, sweep), strict=False):
        line = (
            f"{getattr(after, sweep):8,} {after.measured:9.2f} {after.model:9.2f} {after.model / after.measured:6.0%}"
            f" {times:12.2f}×"
        )
        if before is not None:
            slope = 1e3 * (after.measured - before.measured) / (getattr(after, sweep) - getattr(before, sweep))
            grown = exponent(before, after, sweep)
            line += f" {slope:13.2f} {grown:9.2f}{'  CLIFF' if grown > CLIFF else ''}"
        if times > FALLS_OFF:
            line += "  FALLS OFF"
            fallen.append(f"{variant} at {sweep} {getattr(after, sweep):,} ({times:.2f}×)")
        print(line, flush=True)
    return fallen


def draw(results: dict[str, dict[str, list[Point]]], title: str, path: Path) -> None:
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    figure = Figure(figsize=(11, 5.2), layout="constrained")
    labels = {
        "context": "context of one sequence (tokens)",
        "batch": f"batch (sequences, {BATCH_CONTEXT} tokens of context each)",
    }
    subplots = figure.subplots(1, 2)
    for axes, (sweep, label) in zip(subplots, labels.items(), strict=True):
        for variant, sweeps in results.items():
            places = [getattr(point, sweep) for point in sweeps[sweep]]
            color = COLORS[variant]
            axes.plot(
                places, [point.measured for point in sweeps[sweep]], "o-", color=color, label=f"{variant}, measured"
            )
            axes.plot(places, [point.model for point in sweeps[sweep]], "--", color=color, label=f"{variant}, roofline")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(places, [f"{place:,}" for place in places])
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.set_xlabel(label)
        axes.set_ylabel("time of a decoding step (ms)")
        axes.grid(alpha=0.3)
    figure.legend(*subplots[0].get_legend_handles_labels(), loc="outside lower center", ncols=2 * len(results))
    figure.suptitle(title)
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argument_parser(__doc__, plot=True)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--max-context", type=int, default=max(CONTEXTS))
    parser.add_argument("--max-batch", type=int, default=max(BATCHES))
    arguments = parser.parse_args()
    start = time.perf_counter()
    config = open_checkpoint(arguments.model).config
    machine = measure_limits({BITS: MEMORY_BYTES})
    rates = ", ".join(f"{name} {rate / 1e9:,.0f}" for name, rate in machine.matmul.items())
    about = f"{machine.bandwidth[BITS] / 1e9:.1f} GB/s, {rates} GFLOP/s"
    print(about, flush=True)
    fallen: list[str] = []
    results: dict[str, dict[str, list[Point]]] = {}
    limits = (arguments.max_context, arguments.max_batch)
    for variant in VARIANTS:
        found = in_own_process(measure_variant, arguments.model, variant, arguments.repeats, limits)
        results[variant] = {
            sweep: [
                Point(context, batch, 1e3 * seconds, 1e3 * roofline(machine, config, variant, context, batch))
                for context, batch, seconds in points
            ]
            for sweep, points in found.items()
        }
        for sweep, points in results[variant].items():
            fallen += print_sweep(variant, sweep, points)
    print(f"\nPoints above {FALLS_OFF} times what their neighbours let one expect: {', '.join(fallen) or 'none'}")
    print(f"measured within {time.perf_counter() - start:.0f} s")
    found = {name: {sweep: [asdict(p) for p in ps] for sweep, ps in sweeps.items()} for name, sweeps in results.items()}
    write_json(arguments.output, {"about": describe(), "machine": asdict(machine), **found})
    if arguments.plot is not None:
        draw(results, f"{arguments.model}: {about}", arguments.plot)


if __name__ == "__main__":
    main()
