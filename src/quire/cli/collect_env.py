"""Describe this machine and the installed versions, for a bug report."""

from __future__ import annotations

import argparse
import json

from quire.bench.environment import collect_environment


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> None:
    environment = collect_environment()
    if args.json:
        print(json.dumps(environment, indent=2))
        return
    width = max(map(len, environment))
    for name, value in environment.items():
        print(f"{name:<{width}}  {value}")
