"""Measure how fast a model runs here, or how a server answers. One warm-up comes before timed repeats."""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import Any

import msgspec

from quire.bench.environment import collect_environment
from quire.bench.measure import measure_latency, measure_throughput
from quire.bench.plot import check_can_plot, write_plot
from quire.bench.report import Report, print_table, write_json
from quire.bench.times import Measurement
from quire.bench.workloads import BenchRequest, Lengths, dataset_workload, parse_lengths, synthetic_workload
from quire.cli import bench_serve, bench_startup
from quire.cli.engine_flags import OF_EVERY_MODEL, add_engine_flags, engine_arguments
from quire.cli.shared_flags import add_shared_flags, count, readable_file, writable_file
from quire.core.engine_info import EngineInfo
from quire.engine.async_llm import AsyncLLM
from quire.engine.llm import LLM
from quire.engine.tokenizer import Tokenizer
from quire.errors import InvalidRequestError

EXAMPLES = """\
examples:
  quire bench throughput --num-prompts 32 --input-len 128:512 --output-len 128 --plot throughput.png
  quire bench serve --request-rate 4 --goodput ttft:500 tpot:100
  quire bench latency --input-len 128 --output-len 256
  quire bench throughput --dataset conversations.jsonl --output result.json
"""
ENGINE_FLAGS = (
    *OF_EVERY_MODEL,
    "max_num_seqs",
    "max_num_batched_tokens",
    "block_size",
    "num_blocks",
    "preallocate_kv_cache",
    "enable_prefix_caching",
    "enforce_eager",
    "num_steps_in_flight",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    kinds = parser.add_subparsers(dest="kind", metavar="serve | startup | latency | throughput", required=True)
    for name, command, help in (
        ("serve", bench_serve, "load on a running server"),
        ("startup", bench_startup, "from process start to the first token"),
    ):
        command.add_arguments(
            kinds.add_parser(
                name, help=help, description=command.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
            )
        )
    throughput = kinds.add_parser("throughput", help="many requests at once", description="Many requests at once.")
    _add_flags(throughput, num_prompts=32, input_len="128:512")
    throughput.set_defaults(run_kind=_run_offline, measure=_run_throughput)
    latency = kinds.add_parser("latency", help="a few that start together", description="A few that start together.")
    _add_flags(latency, num_prompts=1, input_len="128")
    latency.set_defaults(run_kind=_run_offline, measure=lambda args: asyncio.run(_run_latency(args)))


def _add_flags(parser: argparse.ArgumentParser, *, num_prompts: int, input_len: str) -> None:
    add_shared_flags(parser)
    group = parser.add_argument_group("workload")
    group.add_argument(
        "--num-prompts", type=count, default=num_prompts, metavar="N", help="requests (default: %(default)s)"
    )
    for flag, default in (("--input-len", input_len), ("--output-len", "128")):
        group.add_argument(
            flag, type=parse_lengths, default=default, metavar="N[:N]", help="tokens, or a range (default: %(default)s)"
        )
    group.add_argument(
        "--dataset", type=readable_file, metavar="FILE", help=".txt, .jsonl or .json (default: random tokens)"
    )
    group.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the workload (default: %(default)s)")
    group.add_argument("--repeats", type=count, default=3, metavar="N", help="timed runs (default: %(default)s)")
    group.add_argument("--output", type=writable_file, metavar="FILE", help="write the result as JSON")
    group.add_argument("--plot", type=writable_file, metavar="FILE", help="write a picture (.png)")
    add_engine_flags(parser, ENGINE_FLAGS)


def run(args: argparse.Namespace) -> None:
    args.run_kind(args)


def _run_offline(args: argparse.Namespace) -> None:
    if args.plot is not None:
        check_can_plot(args.plot)
    report: Report = args.measure(args)
    print_table(report)
    if args.output is not None:
        write_json(report.to_dict(), args.output)
    if args.plot is not None:
        write_plot(report, args.plot)


def _run_throughput(args: argparse.Namespace) -> Report:
    with LLM(**engine_arguments(args)) as llm:
        workload = _workload(args, llm.get_tokenizer(), llm.info)
        measurements = []
        for repeat in range(args.repeats + 1):
            _show_repeat(args, repeat)
            measurements.append(measure_throughput(llm, workload, show_progress=not args.quiet))
        return _report(args, llm.info, measurements[1:])


async def _run_latency(args: argparse.Namespace) -> Report:
    async with AsyncLLM(**engine_arguments(args)) as llm:
        workload = _workload(args, llm.get_tokenizer(), llm.info)
        measurements = []
        for repeat in range(args.repeats + 1):
            _show_repeat(args, repeat)
            measurements.append(await measure_latency(llm, workload))
        return _report(args, llm.info, measurements[1:])


def _workload(args: argparse.Namespace, tokenizer: Tokenizer, info: EngineInfo) -> list[BenchRequest]:
    input_len: Lengths = args.input_len
    output_len: Lengths = args.output_len
    if input_len.high + output_len.high > info.max_model_len:
        raise InvalidRequestError(
            f"Up to {input_len.high} input and {output_len.high} output tokens do not fit in the context of"
            f" {info.max_model_len}; lower --input-len or --output-len.",
            field="input_len",
        )
    if args.dataset is not None:
        return dataset_workload(args.dataset, tokenizer, args.num_prompts, input_len, output_len, args.seed)
    return synthetic_workload(tokenizer.vocab_size, args.num_prompts, input_len, output_len, args.seed)


def _show_repeat(args: argparse.Namespace, repeat: int) -> None:
    if not args.quiet:
        what = f"repeat {repeat} of {args.repeats}" if repeat else "warm-up"
        print(what, file=sys.stderr, flush=True)


def _report(args: argparse.Namespace, info: EngineInfo, measurements: list[Measurement]) -> Report:
    workload: dict[str, Any] = {
        "dataset": "random" if args.dataset is None else str(args.dataset),
        "num_prompts": args.num_prompts,
        "input_len": str(args.input_len),
        "output_len": str(args.output_len),
        "seed": args.seed,
    }
    resolved = msgspec.structs.asdict(info)
    return Report(args.kind, info.model, workload, resolved, collect_environment(), measurements)
