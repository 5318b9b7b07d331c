"""The flags every command takes, before or after its name."""

from __future__ import annotations

import argparse


def add_shared_flags(parser: argparse.ArgumentParser) -> None:
    """Without defaults, or a command's parser would overwrite what was given before its name."""
    parser.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show tracebacks")
    parser.add_argument(
        "-q", "--quiet", action="store_true", default=argparse.SUPPRESS, help="no logs, no progress on stderr"
    )


def count(text: str) -> int:
    """A flag's whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text}")
    return int(text)


def seconds(text: str) -> float:
    """A flag's time, which passes."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value > 0:
        raise argparse.ArgumentTypeError(f"must be seconds above 0, got {text}")
    return value
