"""Answer a file of requests (OpenAI's batch format), one record a line.

A run that was stopped or killed is taken up by the same command: requests that have a record are not asked again.
The exit code is 1 if no request was answered, in this run or an earlier one, or if not all were asked.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from contextlib import ExitStack
from pathlib import Path

from tqdm import tqdm

from quire.cli.answer import tell
from quire.cli.engine_flags import OF_EVERY_MODEL, add_engine_flags, engine_flag_words
from quire.cli.server_flags import add_server_flags, check_who_computes
from quire.cli.shared_flags import count, seconds
from quire.client.address import ServerAddress, parse_address
from quire.client.batch import BatchCounts, BatchRun, count_requests
from quire.client.batch_file import BatchOutput, readable_twice
from quire.client.server_process import ServerProcess
from quire.errors import QuireError

EXAMPLES = """\
examples:
  quire run-batch -i requests.jsonl -o answers.jsonl
  quire run-batch -i requests.jsonl -o answers.jsonl --url http://127.0.0.1:8000
"""
READY_TIMEOUT_S = 600.0
WITHOUT_LIMITS = ("--max-client-requests", "1000000000", "--max-queued-requests", "1000000000")
"""The run has a limit of its own, --max-concurrency; one line may ask for many prompts."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument(
        "-i", "--input", type=Path, required=True, metavar="FILE", help="requests, JSON lines (-: stdin)"
    )
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="records, appended to")
    parser.add_argument(
        "--max-concurrency", type=count, default=64, metavar="N", help="requests at once (default: %(default)s)"
    )
    parser.add_argument(
        "--timeout", type=seconds, default=600, metavar="S", help="seconds for a request (default: %(default)s)"
    )
    add_server_flags(
        parser, default=None, note="an OpenAI-compatible server (default: one is started for the run, and stopped)"
    )
    add_engine_flags(parser, OF_EVERY_MODEL)


def run(args: argparse.Namespace) -> int:
    check_who_computes(args, sends_model=False)
    with ExitStack() as stack:
        output = stack.enter_context(BatchOutput(args.output))
        source = stack.enter_context(readable_twice(args.input))
        total = count_requests(source, output.done)
        if len(output.done) < total:
            counts = _run(args, source, output, total, stack)
        else:
            counts = BatchCounts(total, output.num_answered)
    if not args.quiet:
        print(f"{counts.completed} answered, {counts.failed} failed, {counts.earlier} done before.", file=sys.stderr)
    if counts.first_failure is not None:
        tell(f"error: the first of {counts.failed} that failed: {counts.first_failure}")
    if counts.total < total:
        raise QuireError(
            f"{total - counts.total} of {total} requests were not asked, for {args.input} changed meanwhile; run again."
        )
    return int(counts.all_failed)


def _run(args: argparse.Namespace, source: Path, output: BatchOutput, total: int, stack: ExitStack) -> BatchCounts:
    try:
        address = _own_server(args, stack) if args.url is None else parse_address(args.url, args.api_key)
        with tqdm(total=total, initial=len(output.done), disable=args.quiet, unit="req") as bar:
            batch = BatchRun(
                source,
                output,
                address,
                max_concurrency=args.max_concurrency,
                timeout_s=args.timeout,
                on_record=bar.update,
            )
            return asyncio.run(batch.run())
    except KeyboardInterrupt:
        if not args.quiet:
            print("Stopped; run again to take the batch up.", file=sys.stderr)
        raise


def _own_server(args: argparse.Namespace, stack: ExitStack) -> ServerAddress:
    if not args.quiet:
        print("Starting a server for the run ...", file=sys.stderr)
    server = stack.enter_context(ServerProcess([*engine_flag_words(args), *WITHOUT_LIMITS]))
    server.wait_until("/health/ready", READY_TIMEOUT_S)
    return server.address
