"""How much of the KV cache is allocated and not used, on a trace's request lengths.

    python -m benchmarks.kv_waste AzureLLMInferenceTrace_conv.csv --output waste.json --plot waste.png

The trace is one of Azure's (.csv) or Mooncake's (.jsonl). Its first requests arrive at once and run through
the scheduler with the null executor; after every step the token slots that running sequences hold are counted. The
same sequences are also charged as if each had one contiguous piece of memory: of max_model_len slots, for output
lengths are not known in advance; and of exactly its final length, as if they were.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.script import argument_parser, null_executor, write_json

from quire.bench.serve.traces import read_trace
from quire.cache.kv_cache_manager import KVCacheManager
from quire.config import SchedulerConfig
from quire.core.kv_layout import KVSpec, make_kv_cache_config
from quire.core.sampling_params import SamplingParams
from quire.core.sequence import Sequence, SequenceStatus
from quire.scheduler.scheduler import Scheduler

WAYS = {
    "paged": "blocks",
    "final_length": "contiguous,\nfinal length known",
    "max_model_len": "contiguous,\nmax_model_len",
}


def read_lengths(trace: Path, num_requests: int) -> list[tuple[int, int]]:
    """(prompt tokens, output tokens) of the first requests."""
    traced = read_trace(trace, num_requests)
    return [(max(1, one.num_input_tokens), max(1, one.num_output_tokens)) for one in traced]


def make_sequences(lengths: list[tuple[int, int]]) -> list[Sequence]:
    """Prompts share nothing: sharing would only lower the waste."""
    return [
        Sequence(
            seq_id=seq_id,
            request_id=str(seq_id),
            token_ids=[seq_id + (i << 16) for i in range(prompt)],
            num_prompt_tokens=prompt,
            sampling_params=SamplingParams(max_tokens=output),
            max_num_tokens=prompt + output,
            arrival_time=float(seq_id),
        )
        for seq_id, (prompt, output) in enumerate(lengths)
    ]


def measure(args: argparse.Namespace, lengths: list[tuple[int, int]]) -> dict[str, object]:
    config = make_kv_cache_config(
        [KVSpec(num_kv_heads=1, head_dim=64)],
        block_size=args.block_size,
        dtype="bfloat16",
        num_blocks=args.num_slots // args.block_size + 1,
    )
    kv = KVCacheManager(config, model_identity="null")
    scheduler = Scheduler(SchedulerConfig(max_model_len=args.max_model_len), kv)
    executor = null_executor()
    sequences = make_sequences(lengths)
    for sequence in sequences:
        scheduler.add(sequence)
    allocated = dict.fromkeys(WAYS, 0)
    used = num_steps = num_running = 0
    while scheduler.has_unfinished:
        plan = scheduler.plan()
        assert plan is not None
        running = [sequence for sequence in sequences if sequence.status is SequenceStatus.RUNNING]
        used += sum(sequence.num_planned for sequence in running)
        assert kv.pool.num_held * args.block_size == sum(kv.capacity(sequence) for sequence in running)
        allocated["paged"] += kv.pool.num_held * args.block_size
        allocated["final_length"] += sum(sequence.max_num_tokens for sequence in running)
        allocated["max_model_len"] += args.max_model_len * len(running)
        num_steps, num_running = num_steps + 1, num_running + len(running)
        executor.submit(plan)
        scheduler.commit(plan, executor.collect())
    return {
        "num_requests": len(lengths),
        "mean_prompt_tokens": sum(prompt for prompt, _ in lengths) / len(lengths),
        "mean_output_tokens": sum(output for _, output in lengths) / len(lengths),
        "block_size": args.block_size,
        "num_slots": args.num_slots,
        "max_model_len": args.max_model_len,
        "num_steps": num_steps,
        "mean_running": num_running / num_steps,
        "num_preemptions": scheduler.num_preemptions,
        "waste_rate": {way: 1 - used / slots for way, slots in allocated.items()},
    }


def plot(figures: dict[str, object], rates: dict[str, float], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    bars = axes.bar([WAYS[way] for way in WAYS], [100 * rates[way] for way in WAYS], color=["#2a6f97", "#aaa", "#aaa"])
    axes.bar_label(bars, fmt="%.1f %%", padding=2)
    axes.set(ylabel="allocated but unused token slots (%)", ylim=(0, 100))
    axes.set_title(f"KV waste, {figures['num_requests']} requests, blocks of {figures['block_size']} tokens")
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argument_parser(__doc__, plot=True)
    parser.add_argument("trace", type=Path, help="Azure's .csv or Mooncake's .jsonl")
    parser.add_argument("--num-requests", type=int, default=256)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--num-slots", type=int, default=131072, help="token slots of the whole cache")
    parser.add_argument("--max-model-len", type=int, default=8192)
    args = parser.parse_args()
    figures = measure(args, read_lengths(args.trace, args.num_requests))
    rates = figures["waste_rate"]
    assert isinstance(rates, dict)
    print(
        f"{figures['num_requests']} requests, {figures['mean_running']:.0f} running on average,"
        f" {figures['num_preemptions']} preemptions over {figures['num_steps']} steps"
    )
    for way, label in WAYS.items():
        print(f"{label.replace(chr(10), ' '):32} {100 * rates[way]:5.2f} % of allocated slots unused")
    write_json(args.output, figures)
    if args.plot:
        plot(figures, rates, args.plot)


if __name__ == "__main__":
    main()
