"""What a tenant with few short prompts waits while another sends 100 long ones: first come first served against fair.

python -m benchmarks.fairness [--step-ms 20] [--token-ms 1.2] [--output r.json] [--plot r.png]

The real scheduler and KV cache manager on a simulated clock, so that every run gives the same figures: a step takes
step-ms + token-ms for each of its tokens (about a 135M model on two cores).
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.script import argument_parser, null_executor, random_prompt, write_json

from quire.bench.plot import BLUE, GREY, ORANGE
from quire.bench.statistics import summarize_ms
from quire.cache.kv_cache_manager import KVCacheManager
from quire.config import SchedulerConfig
from quire.core.kv_layout import KVSpec, make_kv_cache_config
from quire.core.sampling_params import SamplingParams
from quire.core.sequence import Sequence
from quire.scheduler.scheduler import Scheduler

NUM_LONG, LONG_PROMPT, LONG_OUTPUT = 100, 1000, 64
NUM_SHORT, SHORT_PROMPT, SHORT_OUTPUT, SHORT_EVERY_S = 20, 50, 32, 5.0
BLOCK_SIZE, NUM_BLOCKS, MAX_NUM_SEQS, TOKEN_BUDGET = 16, 1500, 16, 256


@dataclass
class Times:
    """Seconds on the simulated clock."""

    arrival: float
    tokens: list[float] = field(default_factory=list)

    @property
    def ttft(self) -> float:
        return self.tokens[0] - self.arrival

    @property
    def e2el(self) -> float:
        return self.tokens[-1] - self.arrival


def make_requests(tenants: str) -> list[Sequence]:
    rng = random.Random(0)

    def make(seq_id: int, tenant: str, arrival: float, num_prompt: int, num_output: int) -> Sequence:
        return Sequence(
            seq_id=seq_id,
            request_id=str(seq_id),
            token_ids=random_prompt(rng, num_prompt),
            num_prompt_tokens=num_prompt,
            sampling_params=SamplingParams(),
            max_num_tokens=num_prompt + num_output,
            arrival_time=arrival,
            tenant=tenant,
        )

    long = [make(i, "a", 0.0, LONG_PROMPT, LONG_OUTPUT) for i in range(NUM_LONG)]
    short = [make(NUM_LONG + i, "b", SHORT_EVERY_S * (i + 1), SHORT_PROMPT, SHORT_OUTPUT) for i in range(NUM_SHORT)]
    return [sequence for sequence in long + short if sequence.tenant in tenants]


def simulate(policy: Any, tenants: str, step_s: float, token_s: float) -> dict[str, list[Times]]:
    layout = make_kv_cache_config(
        [KVSpec(num_kv_heads=1, head_dim=64)],
        block_size=BLOCK_SIZE,
        dtype="bfloat16",
        num_blocks=NUM_BLOCKS,
    )
    config = SchedulerConfig(policy=policy, max_num_seqs=MAX_NUM_SEQS, max_num_batched_tokens=TOKEN_BUDGET)
    scheduler = Scheduler(config, KVCacheManager(layout))
    executor = null_executor()
    arrivals = make_requests(tenants)
    times = {sequence.seq_id: Times(sequence.arrival_time) for sequence in arrivals}
    results: dict[str, list[Times]] = {tenant: [] for tenant in tenants}
    for sequence in arrivals:
        results[sequence.tenant].append(times[sequence.seq_id])
    now = 0.0
    while arrivals or scheduler.has_unfinished:
        if not scheduler.has_unfinished:
            now = max(now, arrivals[0].arrival_time)
        while arrivals and arrivals[0].arrival_time <= now:
            scheduler.add(arrivals.pop(0))
        plan = scheduler.plan()
        assert plan is not None
        executor.submit(plan)
        now += step_s + token_s * plan.num_tokens
        for update in scheduler.commit(plan, executor.collect()):
            times[update.sequence.seq_id].tokens += [now] * len(update.new_token_ids)
    return results


def main() -> None:
    parser = argument_parser(__doc__, plot=True)
    parser.add_argument("--step-ms", type=float, default=20.0)
    parser.add_argument("--token-ms", type=float, default=1.2)
    args = parser.parse_args()
    step_s, token_s = args.step_ms / 1000, args.token_ms / 1000
    runs = {
        "fcfs": simulate("fcfs", "ab", step_s, token_s),
        "fair": simulate("fair", "ab", step_s, token_s),
        "b alone": simulate("fcfs", "b", step_s, token_s),
    }
    figures = {
        name: {
            tenant: {
                **summarize_ms("ttft", [request.ttft for request in requests]),
                **summarize_ms("e2el", [request.e2el for request in requests]),
            }
            for tenant, requests in run.items()
        }
        for name, run in runs.items()
    }
    print(f"{'':<8} tenant {'TTFT median':>12} {'p99':>9} {'E2EL median':>12} {'p99':>9}   (seconds)")
    for name, tenants in figures.items():
        for tenant, found in tenants.items():
            columns = [found[f"{kind}_ms"] / 1000 for kind in ("median_ttft", "p99_ttft", "median_e2el", "p99_e2el")]
            print(
                f"{name:<8} {tenant:<6} "
                + " ".join(f"{value:>{w}.2f}" for value, w in zip(columns, (12, 9, 12, 9), strict=True))
            )
    write_json(args.output, {"step_ms": args.step_ms, "token_ms": args.token_ms, **figures})
    if args.plot is not None:
        plot(runs, args.plot)


def plot(runs: dict[str, dict[str, list[Times]]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    panels = figure.subplots(1, 2)
    for axes, tenant, title in zip(
        panels,
        "ba",
        (
            f"b: {NUM_SHORT} prompts of {SHORT_PROMPT} tokens",
            f"a: {NUM_LONG} prompts of {LONG_PROMPT:,} tokens at once",
        ),
        strict=True,
    ):
        for (name, run), color in zip(runs.items(), (ORANGE, BLUE, GREY), strict=True):
            if tenant in run:
                axes.ecdf([request.ttft for request in run[tenant]], label=name, color=color)
        axes.set_xlabel("seconds to the first token")
        axes.set_ylabel("share of requests")
        axes.set_title(title)
        axes.grid(alpha=0.3)
        axes.legend(loc="lower right")
    panels[0].set_xscale("log")
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
