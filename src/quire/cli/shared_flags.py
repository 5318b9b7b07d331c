"""The flags every command takes, before or after its name."""

from __future__ import annotations

import argparse


def add_shared_flags(parser: argparse.ArgumentParser) -> None:
    """Without defaults, or a command's parser would overwrite what was given before its name."""
    parser.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show tracebacks")
    parser.add_argument(
        "-q", "--quiet", action="store_true", default=argparse.SUPPRESS, help="no logs, no progress on stderr"
    )
