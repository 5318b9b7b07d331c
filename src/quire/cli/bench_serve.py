"""Load a running server and measure what its clients see."""

from __future__ import annotations

import argparse
import asyncio
import json
import math
from typing import Any

from rich.console import Console

from quire.bench.environment import collect_environment
from quire.bench.plot import check_can_plot
from quire.bench.report import write_json
from quire.bench.serve.bench import ServeBench, ServeOptions
from quire.bench.serve.comparison import TOLERANCE
from quire.bench.serve.datasets import DATASETS, DatasetChoice
from quire.bench.serve.load import PATHS
from quire.bench.serve.overhead import measure_overhead
from quire.bench.serve.plot import write_plot
from quire.bench.serve.report import print_comparison, print_result, print_sweep
from quire.bench.serve.result import ServeResult, parse_objectives
from quire.bench.serve.traces import TraceScale
from quire.bench.serve.traffic import Traffic
from quire.bench.times import METRICS
from quire.bench.workloads import parse_lengths
from quire.cli.config_flags import flag
from quire.cli.server_flags import add_server_flags
from quire.cli.shared_flags import add_shared_flags, count, readable_file, seconds, writable_file
from quire.client.address import parse_address
from quire.errors import InvalidRequestError, QuireError

EXAMPLES = """\
examples:
  quire bench serve --request-rate 4 --goodput ttft:500 tpot:100 --plot serve.png --output serve.json
  quire bench serve --dataset-name timed-trace --dataset-path AzureLLMInferenceTrace_conv.csv --time-scale 4
  quire bench serve --sweep 1,2,4,8 --plot sweep.png
  quire bench serve --measure-client
"""
RAMP = ("ramp_up_strategy", "ramp_up_start_rps", "ramp_up_end_rps")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    add_shared_flags(parser)
    add_server_flags(parser)
    _add_request_flags(parser.add_argument_group("requests"))
    _add_dataset_flags(parser.add_argument_group("dataset"))
    _add_traffic_flags(parser.add_argument_group("traffic"))
    _add_report_flags(parser.add_argument_group("report"))
    parser.set_defaults(run_kind=run)


def _add_request_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--model", metavar="NAME", help="as the server knows it (default: its first)")
    group.add_argument("--tokenizer", metavar="NAME", help="model whose tokenizer counts prompts (default: --model)")
    group.add_argument(
        "--endpoint",
        choices=tuple(PATHS),
        default="completions",
        help="what requests are sent to (default: %(default)s)",
    )
    group.add_argument(
        "--ignore-eos",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="outputs of exactly the wanted length; servers other than quire's and vLLM's may refuse it",
    )
    group.add_argument(
        "--extra-body", type=_parse_fields, default={}, metavar="JSON", help="more fields of each request"
    )
    group.add_argument(
        "--timeout", type=seconds, default=600, metavar="S", help="seconds for a request (default: %(default)s)"
    )


def _add_dataset_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--dataset-name",
        choices=tuple(DATASETS),
        default="random",
        help="where prompts are from (default: %(default)s)",
    )
    group.add_argument(
        "--dataset-path",
        type=readable_file,
        metavar="FILE",
        help="sonnet: any .txt; sharegpt, custom: .json or .jsonl; timed-trace: Azure's .csv or Mooncake's .jsonl",
    )
    group.add_argument(
        "--num-prompts", "--limit", type=count, default=100, metavar="N", help="requests (default: %(default)s)"
    )
    group.add_argument(
        "--input-len",
        type=parse_lengths,
        default="128:512",
        metavar="N[:N]",
        help="prompt tokens (default: %(default)s)",
    )
    group.add_argument(
        "--output-len",
        type=parse_lengths,
        metavar="N[:N]",
        help="output tokens (default: as recorded in the dataset, or 128)",
    )
    group.add_argument(
        "--prefix-len",
        type=count,
        default=256,
        metavar="N",
        help="tokens of a shared prefix, for prefix_repetition (default: %(default)s)",
    )
    group.add_argument(
        "--num-prefixes",
        type=count,
        default=10,
        metavar="N",
        help="shared prefixes, for prefix_repetition (default: %(default)s)",
    )
    group.add_argument("--time-scale", type=float, default=1.0, metavar="F", help="2 replays a trace half as fast")
    group.add_argument("--token-scale", type=float, default=1.0, metavar="F", help="factor on a trace's lengths")
    group.add_argument("--max-prompt-tokens", type=count, metavar="N", help="longer prompts of a trace are cut")
    group.add_argument("--max-output-tokens", type=count, metavar="N", help="longer outputs of a trace are cut")
    group.add_argument(
        "--seed", type=int, default=0, metavar="N", help="seed of prompts and arrivals (default: %(default)s)"
    )


def _add_traffic_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--request-rate", type=float, metavar="R", help="requests a second (default: all at once)")
    group.add_argument(
        "--burstiness", type=float, metavar="F", help="1 is Poisson (the default), less is burstier, inf even"
    )
    group.add_argument("--ramp-up-strategy", choices=("linear", "exponential"), help="from start to end rate")
    group.add_argument("--ramp-up-start-rps", type=float, metavar="R", help="requests a second at the start")
    group.add_argument("--ramp-up-end-rps", type=float, metavar="R", help="requests a second at the end")
    group.add_argument("--max-concurrency", type=count, metavar="N", help="requests in flight (default: no limit)")
    group.add_argument("--sweep", type=_parse_rates, metavar="R,R,...", help="a run at each request rate")


def _add_report_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--goodput", nargs="+", default=[], metavar="METRIC:MS", help="objectives, like ttft:200 tpot:50"
    )
    group.add_argument(
        "--percentile-metrics",
        default="ttft,tpot,itl,e2el",
        metavar="M,M",
        help="latencies to show (default: %(default)s)",
    )
    group.add_argument(
        "--metric-percentiles", default="50,90,99", metavar="P,P", help="percentiles of them (default: %(default)s)"
    )
    group.add_argument("--check-metrics", action="store_true", help="compare with the server's own /metrics")
    group.add_argument("--output", type=writable_file, metavar="FILE", help="write the result as JSON")
    group.add_argument("--save-detailed", action="store_true", help="with a record of each request in --output")
    group.add_argument("--plot", type=writable_file, metavar="FILE", help="write a picture (.png)")
    group.add_argument("--measure-client", action="store_true", help="only measure what the load generator costs")


def _parse_rates(text: str) -> list[float]:
    try:
        return [float(word) for word in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be request rates such as 1,2,4, got {text}") from error


def _parse_fields(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"must be a JSON object, got {text}")
    return value


def run(args: argparse.Namespace) -> None:
    if args.measure_client:
        _measure_client(args)
        return
    if args.plot is not None:
        check_can_plot(args.plot)
    _check_traffic(args)
    bench = ServeBench(_options(args))
    _report(args, bench, asyncio.run(bench.run(show_progress=not args.quiet)))


def _measure_client(args: argparse.Namespace) -> None:
    overhead = asyncio.run(measure_overhead())
    console = Console()
    console.print(
        f"{overhead.paced_tokens_per_s:,.0f} tokens/s of 64 streams take {overhead.paced_cpu_share:.0%} of a core"
        f" (capacity {overhead.capacity:,.0f}); a flood comes in at {overhead.flood_tokens_per_s:,.0f} tokens/s;"
        f" a token's time stamp is late by {overhead.median_latency_ms:.2f} ms (p99 {overhead.p99_latency_ms:.2f})."
    )
    if args.output is not None:
        write_json(overhead.to_dict(), args.output)


def _check_traffic(args: argparse.Namespace) -> None:
    """Raises InvalidRequestError for flags that would decide nothing."""
    names: tuple[str, ...]
    if args.dataset_name == "timed-trace":
        reason, names = "A timed trace has its own times", ("request_rate", "burstiness", *RAMP, "sweep")
    elif args.sweep is not None:
        reason, names = "--sweep sets the rate", ("request_rate", *RAMP)
    elif args.ramp_up_strategy is not None:
        reason, names = "A ramp sets the rate", ("request_rate",)
    else:
        reason, names = "There is no ramp without --ramp-up-strategy", RAMP
    given = [name for name in names if getattr(args, name) is not None]
    if given:
        raise InvalidRequestError(f"{reason}; leave out {', '.join(map(flag, given))}.", field=given[0])


def _metrics(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in METRICS]
    if unknown:
        raise InvalidRequestError(
            f"--percentile-metrics takes {', '.join(METRICS)}, got {', '.join(unknown)}.", field="--percentile-metrics"
        )
    return names


def _percentiles(text: str) -> list[float]:
    try:
        values = [float(word) for word in text.split(",")]
    except ValueError:
        values = [-1.0]
    if not all(0 <= value <= 100 for value in values):
        raise InvalidRequestError(f"--metric-percentiles are numbers from 0 to 100, got {text}.", field="percentiles")
    return values


def _options(args: argparse.Namespace) -> ServeOptions:
    """Raises InvalidRequestError for flags that contradict each other."""
    scale = TraceScale(args.time_scale, args.token_scale, args.max_prompt_tokens, args.max_output_tokens)
    return ServeOptions(
        address=parse_address(args.url, args.api_key),
        endpoint=args.endpoint,
        model=args.model,
        tokenizer=args.tokenizer,
        ignore_eos=args.ignore_eos,
        extra_body=args.extra_body,
        timeout_s=args.timeout,
        dataset=DatasetChoice(
            args.dataset_name,
            args.dataset_path,
            args.num_prompts,
            args.input_len,
            args.output_len,
            args.prefix_len,
            args.num_prefixes,
            scale,
            args.seed,
        ),
        traffics=_traffics(args),
        max_concurrency=args.max_concurrency,
        objectives=parse_objectives(args.goodput) if args.goodput else None,
        metrics=_metrics(args.percentile_metrics),
        percentiles=_percentiles(args.metric_percentiles),
        check_metrics=args.check_metrics,
    )


def _traffics(args: argparse.Namespace) -> list[Traffic]:
    burstiness = 1.0 if args.burstiness is None else args.burstiness
    if args.sweep:
        return [Traffic(rate, burstiness) for rate in args.sweep]
    if args.ramp_up_strategy and args.ramp_up_start_rps is None:
        raise InvalidRequestError("A ramp needs --ramp-up-start-rps.", field="ramp_up_start_rps")
    start = args.ramp_up_start_rps if args.ramp_up_strategy else args.request_rate
    return [Traffic(math.inf if start is None else start, burstiness, args.ramp_up_strategy, args.ramp_up_end_rps)]


def _report(args: argparse.Namespace, bench: ServeBench, results: list[ServeResult]) -> None:
    """Table, JSON, picture. Raises QuireError if everything failed, or the server's metrics disagree."""
    console = Console()
    last = results[-1]
    if last.num_cut:
        console.print(f"{last.num_cut} of {len(last.run.requests)} requests were cut to fit.", style="yellow")
    if args.sweep:
        print_sweep(results, console)
    else:
        print_result(results[0], console)
    for result in results:
        if result.comparisons:
            print_comparison(result.comparisons, console)
    if args.output is not None:
        figures = bench.to_dict(results, details=args.save_detailed, sweep=bool(args.sweep))
        write_json(figures | {"client": collect_environment()}, args.output)
    if args.plot is not None:
        write_plot(results, bench.title(results), args.plot, sweep=bool(args.sweep))
    if not any(result.run.completed for result in results):
        raise QuireError("Every request failed; the reasons stand above.")
    if not all(one.agrees for result in results for one in result.comparisons):
        raise QuireError(f"The server's /metrics and the client's figures differ by more than {TOLERANCE:.0%}.")
