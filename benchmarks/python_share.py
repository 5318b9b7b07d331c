"""What Python takes of a decoding step: the time between two programs of the native kernels, beside the programs' own.

    python -m benchmarks.python_share
    python -m benchmarks.python_share --num-streams 64 --quantization int8

All of a step that is not its program counts: the scheduler, the sampler, text, and the loop of `LLM.generate`. Wall clock; on a
machine with other jobs the share says more than the times. Prints medians and quartiles; writes JSON with --output.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from typing import NamedTuple

from benchmarks.peers.machine import describe
from benchmarks.script import argument_parser, random_prompt, write_json

from quire import LLM, SamplingParams
from quire.kernels import native_module
from quire.kernels.recording import Recording


class Quartiles(NamedTuple):
    """The first, the median and the third."""

    low: float
    median: float
    high: float


class ProgramClock:
    """When each program began and ended; one wrapper is all that is added to a step."""

    def __init__(self) -> None:
        self.begins: list[float] = []
        self.ends: list[float] = []
        self._run = native_module.run
        native_module.run = self._timed

    def _timed(self, recording: Recording, counts: tuple[int, int] | None = None) -> None:
        self.begins.append(time.perf_counter())
        self._run(recording, counts)
        self.ends.append(time.perf_counter())

    def steps(self) -> list[tuple[float, float]]:
        """Of each step but the last: seconds of its program, and from there to the next one."""
        following = zip(self.begins, self.ends, self.begins[1:], strict=False)
        return [(end - begin, next_begin - end) for begin, end, next_begin in following]

    def clear(self) -> None:
        self.begins.clear()
        self.ends.clear()


def quartiles(values: list[float]) -> Quartiles:
    return Quartiles(*statistics.quantiles(values, n=4))


def summarize(steps: list[tuple[float, float]]) -> dict[str, Quartiles]:
    return {
        "step_ms": quartiles([1e3 * (program + python) for program, python in steps]),
        "program_ms": quartiles([1e3 * program for program, _ in steps]),
        "python_ms": quartiles([1e3 * python for _, python in steps]),
        "python_percent": quartiles([100 * python / (program + python) for program, python in steps]),
    }


def measure(args: argparse.Namespace) -> list[tuple[float, float]]:
    """Steps of all repetitions, each with prompts of its own."""
    clock = ProgramClock()
    steps: list[tuple[float, float]] = []
    rng = random.Random(0)
    with LLM(args.model, backend="cpu", quantization=args.quantization, max_num_seqs=args.num_streams, seed=0) as llm:
        for repetition in range(args.repetitions + 1):
            num_tokens = args.num_tokens if repetition else 4  # The first one records the program.
            params = SamplingParams(temperature=args.temperature, max_tokens=num_tokens, ignore_eos=True)
            prompts = [random_prompt(rng, args.prompt_tokens) for _ in range(args.num_streams)]
            clock.clear()
            llm.generate(prompts, params, use_tqdm=False)
            steps += clock.steps() if repetition else []
    return steps


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--quantization", default="stored")
    parser.add_argument("--num-streams", type=int, default=1)
    parser.add_argument("--num-tokens", type=int, default=300)
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--repetitions", type=int, default=4)
    parser.add_argument("--temperature", type=float, default=0.0)
    args = parser.parse_args()
    steps = measure(args)
    summary = summarize(steps)
    print(f"{len(steps)} steps of {args.num_streams} streams, {args.model} {args.quantization}: median (quartiles)")
    for name, value in summary.items():
        print(f"  {name:15s} {value.median:7.3f}  ({value.low:.3f} to {value.high:.3f})")
    figures = {name: value._asdict() for name, value in summary.items()}
    options = {name: value for name, value in vars(args).items() if name != "output"}
    write_json(args.output, {"about": describe(), "options": options, "num_steps": len(steps), **figures})


if __name__ == "__main__":
    main()
