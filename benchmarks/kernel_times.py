"""What each kernel takes of a model's steps: its own time within the program, as the first thread sees it.

    python -m benchmarks.kernel_times --quantization int8 --prompt-tokens 2048
    python -m benchmarks.kernel_times --quantization stored --num-streams 32 --num-tokens 100

Steps of the same tokens and rows are one table; kernels of one name and size of weight are one line: how many a step has, and of one of
them the tenth percentile (what it takes on a quiet machine) and the median. Waits between kernels are no kernel's. Parts of a prompt that have
the same number of tokens are one kind of step, whatever came before. Writes JSON with --output.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections import defaultdict
from typing import Any, NamedTuple

from benchmarks.peers.machine import describe
from benchmarks.script import argument_parser, random_prompt, write_json

from quire import LLM, SamplingParams
from quire.kernels.kernel_clock import ClockedKernel, clocked_kernels, kernels_clocked

FEWEST_STEPS = 3
"""Of a kind, that are reported: not the few steps in which some prompts have ended and others have not."""


class Line(NamedTuple):
    """Kernels of one name that read as many bytes of a weight, in steps of one kind; `a_step` how many there are on average."""

    name: str
    weight_bytes: int
    a_step: float
    low_us: float
    median_us: float

    @property
    def step_us(self) -> float:
        """Of all of them in a quiet step."""
        return self.a_step * self.low_us

    @property
    def gb_per_second(self) -> float:
        return self.weight_bytes / self.low_us / 1e3


Step = tuple[int | None, int | None]


def tables(kernels: list[ClockedKernel], *, fewest_steps: int = FEWEST_STEPS) -> dict[Step, list[Line]]:
    """By tokens and rows of a step, the longest lines first."""
    times: dict[Step, dict[tuple[str, int], list[float]]] = defaultdict(lambda: defaultdict(list))
    num_steps: dict[Step, int] = defaultdict(int)
    for kernel in kernels:
        for time in kernel.times:
            step = time.num_tokens, time.num_rows
            times[step][kernel.name, kernel.weight_bytes].append(1e6 * time.seconds)
            num_steps[step] += kernel.place == 0
    return {
        step: sorted((line_of(*key, us, num_steps[step]) for key, us in lines.items()), key=lambda line: -line.step_us)
        for step, lines in times.items()
        if num_steps[step] >= fewest_steps
    }


def line_of(name: str, weight_bytes: int, microseconds: list[float], num_steps: int) -> Line:
    low = sorted(microseconds)[len(microseconds) // 10]
    return Line(name, weight_bytes, len(microseconds) / num_steps, low, statistics.median(microseconds))


def without(kernels: list[ClockedKernel], before: list[ClockedKernel]) -> list[ClockedKernel]:
    """What was measured since: `before` are the first of them."""
    num_times = [len(kernel.times) for kernel in before] + [0] * (len(kernels) - len(before))
    return [kernel._replace(times=kernel.times[skip:]) for kernel, skip in zip(kernels, num_times, strict=True)]


def measure(args: argparse.Namespace) -> list[ClockedKernel]:
    options: dict[str, Any] = {
        name: value for name in ("kv_cache_dtype", "instruction_set") if (value := getattr(args, name))
    }
    rng = random.Random(0)
    params = SamplingParams(temperature=0.0, max_tokens=args.num_tokens, ignore_eos=True)
    with (
        kernels_clocked(),
        LLM(
            args.model,
            backend="cpu",
            dtype=args.dtype,
            quantization=args.quantization,
            max_num_seqs=args.num_streams,
            enable_prefix_caching=False,
            **options,
        ) as llm,
    ):

        def generate() -> None:
            prompts = [random_prompt(rng, args.prompt_tokens) for _ in range(args.num_streams)]
            llm.generate(prompts, params, use_tqdm=False)

        generate()  # Records programs, after runs that try them.
        before = clocked_kernels()
        for _ in range(args.repetitions):
            generate()
        return without(clocked_kernels(), before)


def print_table(step: Step, lines: list[Line]) -> None:
    tokens, rows = step
    total = sum(line.step_us for line in lines)
    print(f"\nA step of {tokens} tokens in {rows} rows: kernels {total / 1e3:.2f} ms")
    print(
        f"  {'kernel':22s} {'weight, KB':>10s} {'a step':>6s} {'10 %, us':>9s} {'median':>9s} {'share':>6s} {'GB/s':>6s}"
    )
    for line in lines:
        weight, rate = (
            (f"{line.weight_bytes / 1e3:.0f}", f"{line.gb_per_second:.1f}") if line.weight_bytes else ("", "")
        )
        share = 100 * line.step_us / total
        print(
            f"  {line.name:22s} {weight:>10s} {line.a_step:6.1f} {line.low_us:9.1f} {line.median_us:9.1f} {share:5.1f}% {rate:>6s}"
        )


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--quantization", default="stored")
    parser.add_argument("--kv-cache-dtype")
    parser.add_argument("--instruction-set")
    parser.add_argument("--num-streams", type=int, default=1)
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--num-tokens", type=int, default=16)
    parser.add_argument("--repetitions", type=int, default=8)
    args = parser.parse_args()
    found = tables(measure(args))
    for step, lines in found.items():
        print_table(step, lines)
    options = {name: value for name, value in vars(args).items() if name != "output"}
    figures = [
        {"num_tokens": step[0], "num_rows": step[1], "kernels": [line._asdict() for line in lines]}
        for step, lines in found.items()
    ]
    write_json(args.output, {"about": describe(), "options": options, "steps": figures})


if __name__ == "__main__":
    main()
