"""What the engine view costs the engine thread, with nobody and with one watching, on the null executor.

    python -m benchmarks.view_overhead --num-seqs 256 --num-blocks 50000

The null executor answers at once, so a step is as short as it can be and the view's share as large. Updates count
with their encoding; theirs is CPU time, in percent of the time that passed.
"""

from __future__ import annotations

import argparse
import time

import msgspec
from benchmarks.script import argument_parser, null_executor, write_json

from quire.cache.kv_cache_manager import KVCacheManager
from quire.config import SchedulerConfig
from quire.core.kv_layout import KVSpec, make_kv_cache_config
from quire.core.request import Request
from quire.core.sampling_params import SamplingParams
from quire.core.step import RowPlan, StepPlan
from quire.engine.engine import Engine
from quire.scheduler.scheduler import Scheduler


def make_engine(args: argparse.Namespace) -> Engine:
    kv_cache = make_kv_cache_config(
        [KVSpec(1, 64)] * 30, block_size=16, dtype="bfloat16", num_blocks=args.num_blocks + 1
    )
    config = SchedulerConfig(max_num_seqs=args.num_seqs, max_model_len=1 << 20)
    engine = Engine(Scheduler(config, KVCacheManager(kv_cache)), null_executor())
    for i in range(args.num_seqs):
        engine.add_request(
            Request(
                request_id=f"request-{i}",
                prompt_token_ids=[i * 31 + j for j in range(args.prompt_tokens)],
                sampling_params=SamplingParams(max_tokens=None),
                max_num_tokens=16 * (args.num_blocks // args.num_seqs),
                seed=i,
            )
        )
    while len(engine.scheduler.running) < args.num_seqs or engine.scheduler.waiting:
        engine.step()
    return engine


def run(args: argparse.Namespace, watched: bool) -> dict[str, float]:
    engine = make_engine(args)
    view = engine.view
    view.set_watching(1, watched)
    encoder = msgspec.msgpack.Encoder()
    num_updates = num_bytes = num_steps = 0
    spent = 0.0
    started = time.perf_counter()
    while time.perf_counter() - started < args.seconds and engine.has_unfinished:
        engine.step()
        num_steps += 1
        before = time.thread_time()
        update = view.take(time.monotonic())
        if update is not None:
            num_updates += 1
            num_bytes += len(encoder.encode(update))
            spent += time.thread_time() - before
    wall = time.perf_counter() - started
    step_us = 1e6 * (wall - spent) / num_steps
    idle_us = cost_per_step(engine)
    print(
        f"{'one watches' if watched else 'nobody watches'}: steps of {step_us:.0f} us,"
        f" {idle_us:.2f} us a step to note it and ask for an update = {100 * idle_us / step_us:.2f} %;"
        f" {num_updates / wall:.1f} updates/s of {num_bytes / max(num_updates, 1) / 1024:.0f} KiB"
        f" = {100 * spent / wall:.2f} % of the engine thread"
    )
    return {"step_us": step_us, "idle_us": idle_us, "updates_per_s": num_updates / wall, "share": spent / wall}


def cost_per_step(engine: Engine) -> float:
    """Microseconds of noting a decode step, and of a `take` that finds it is too early or nobody watches."""
    rows = [RowPlan(seq_id, 100, 1, True) for seq_id in range(256)]
    plan = StepPlan(0, rows, [], [], [], num_tokens=len(rows))
    count, now = 50_000, time.monotonic()
    started = time.perf_counter()
    for _ in range(count):
        engine.view.note_step(plan, now, now)
        engine.view.take(0.0)
    return 1e6 * (time.perf_counter() - started) / count


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--num-seqs", type=int, default=256)
    parser.add_argument("--num-blocks", type=int, default=50_000)
    parser.add_argument("--prompt-tokens", type=int, default=1024)
    parser.add_argument("--seconds", type=float, default=5.0)
    args = parser.parse_args()
    names = {"nobody": False, "one": True}
    write_json(args.output, {name: run(args, watched) for name, watched in names.items()})


if __name__ == "__main__":
    main()
