"""What control costs: Scheduler.plan + commit for each running sequence in each step, without a model.

    python -m benchmarks.engine_overhead --num-seqs 256
    python -m benchmarks.engine_overhead --layout mixed --depth 2 --profile

All sequences decode; the null executor answers at once and is not timed. Prints text, and writes JSON with --output.
"""

from __future__ import annotations

import argparse
import cProfile
import platform
import pstats
import time
from collections import deque

from benchmarks.script import argument_parser, null_executor, write_json

from quire.cache.kv_cache_manager import KVCacheManager
from quire.config import SchedulerConfig
from quire.core.kv_layout import KVSpec, make_kv_cache_config
from quire.core.sampling_params import SamplingParams
from quire.core.sequence import Sequence
from quire.core.step import StepPlan
from quire.scheduler.scheduler import Scheduler

BLOCK_SIZE = 16
FULL = KVSpec(num_kv_heads=1, head_dim=64)
SLIDING = KVSpec(num_kv_heads=1, head_dim=64, window=512)
LAYOUTS: dict[str, list[KVSpec]] = {"full": [FULL] * 30, "mixed": ([SLIDING] * 5 + [FULL]) * 3}
"""Full: a Llama of 30 layers. Mixed: 15 sliding and 3 full layers, as in Gemma 3 270M (6 KV groups)."""


def make_scheduler(args: argparse.Namespace) -> Scheduler:
    length = args.prompt_tokens + args.num_steps + 64
    config = make_kv_cache_config(LAYOUTS[args.layout], block_size=BLOCK_SIZE, dtype="bfloat16", num_blocks=2)
    num_blocks = args.num_seqs * (length // BLOCK_SIZE + 2) * len(config.groups)
    config = make_kv_cache_config(LAYOUTS[args.layout], block_size=BLOCK_SIZE, dtype="bfloat16", num_blocks=num_blocks)
    kv = KVCacheManager(config, model_identity="null", enable_prefix_caching=not args.no_prefix_caching)
    scheduler_config = SchedulerConfig(
        max_num_batched_tokens=args.num_seqs * args.prompt_tokens, max_num_seqs=args.num_seqs, max_model_len=length
    )
    scheduler = Scheduler(scheduler_config, kv)
    for seq_id in range(args.num_seqs):
        scheduler.add(
            Sequence(
                seq_id=seq_id,
                request_id=str(seq_id),
                token_ids=[seq_id * 31 + i for i in range(args.prompt_tokens - seq_id % BLOCK_SIZE)],
                num_prompt_tokens=args.prompt_tokens - seq_id % BLOCK_SIZE,
                sampling_params=SamplingParams(max_tokens=None),
                max_num_tokens=length,
                stop_token_ids=frozenset({0, 2}),
                seed=seq_id,
            )
        )
    return scheduler


class Loop:
    """The engine's loop, with a clock on control. CPU time of this thread: a busy machine does not change it."""

    def __init__(self, scheduler: Scheduler, depth: int) -> None:
        self._scheduler = scheduler
        self._depth = depth
        self._in_flight: deque[StepPlan] = deque()
        self._executor = null_executor()

    def run(self, num_steps: int) -> list[float]:
        """Seconds of plan + commit in each step."""
        seconds = []
        for _ in range(num_steps):
            elapsed = 0.0
            while len(self._in_flight) < self._depth:
                started = time.thread_time()
                plan = self._scheduler.plan()
                elapsed += time.thread_time() - started
                assert plan is not None
                self._executor.submit(plan)
                self._in_flight.append(plan)
            plan, result = self._in_flight.popleft(), self._executor.collect()
            started = time.thread_time()
            self._scheduler.commit(plan, result)
            seconds.append(elapsed + time.thread_time() - started)
        return seconds


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--num-seqs", type=int, default=256)
    parser.add_argument("--num-steps", type=int, default=400)
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--depth", type=int, default=1, help="steps in flight")
    parser.add_argument("--layout", choices=sorted(LAYOUTS), default="full")
    parser.add_argument("--no-prefix-caching", action="store_true")
    parser.add_argument("--profile", action="store_true", help="print where the time goes (slower)")
    args = parser.parse_args()

    scheduler = make_scheduler(args)
    loop = Loop(scheduler, args.depth)
    loop.run(2 * args.depth)
    assert len(scheduler.running) == args.num_seqs
    profile = cProfile.Profile()
    if args.profile:
        profile.enable()
    seconds = loop.run(args.num_steps)
    profile.disable()
    per_sequence = sorted(1e6 * value / args.num_seqs for value in seconds)
    summary = {
        "mean": sum(per_sequence) / len(per_sequence),
        "median": per_sequence[len(per_sequence) // 2],
        "p99": per_sequence[int(0.99 * len(per_sequence))],
    }
    figures = {
        "layout": args.layout,
        "depth": args.depth,
        "num_seqs": args.num_seqs,
        "num_steps": args.num_steps,
        "prefix_caching": not args.no_prefix_caching,
        "python": platform.python_version(),
        "us_per_sequence_per_step": summary,
    }
    print(
        f"{args.num_seqs} sequences, {args.layout} layout, {args.depth} steps in flight: "
        + ", ".join(f"{k} {v:.2f}" for k, v in summary.items())
        + " us per sequence per step"
    )
    if args.profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(14)
    write_json(args.output, figures)


if __name__ == "__main__":
    main()
