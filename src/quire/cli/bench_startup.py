"""Start a server again and again and time it: process start to listening, to ready, to the first token."""

from __future__ import annotations

import argparse
import sys

from quire.bench.environment import collect_environment
from quire.bench.report import write_json
from quire.bench.startup import measure_startup, print_startup, startup_dict
from quire.cli.shared_flags import add_shared_flags, count, writable_file

EXAMPLES = """\
examples:
  quire bench startup
  quire bench startup --repeats 5 -- smollm2 --max-model-len 2048
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    add_shared_flags(parser)
    parser.add_argument("serve_flags", nargs="*", metavar="FLAG", help="flags of `quire serve`, after --")
    parser.add_argument("--repeats", type=count, default=3, metavar="N", help="timed starts (default: %(default)s)")
    parser.add_argument("--output", type=writable_file, metavar="FILE", help="write the result as JSON")
    parser.set_defaults(run_kind=run)


def run(args: argparse.Namespace) -> None:
    runs = []
    for number in range(1, args.repeats + 1):
        runs.append(measure_startup(args.serve_flags))
        if not args.quiet:
            print(f"start {number} of {args.repeats}: first token after {runs[-1].first_token:.2f} s", file=sys.stderr)
    print_startup(runs)
    if args.output is not None:
        result = startup_dict(runs) | {"serve_flags": args.serve_flags}
        write_json(result | {"environment": collect_environment()}, args.output)
