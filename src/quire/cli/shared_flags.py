"""The flags every command takes, before or after its name."""

from __future__ import annotations

import argparse
import os
from pathlib import Path


def add_shared_flags(parser: argparse.ArgumentParser) -> None:
    """Without defaults, or a command's parser would overwrite what was given before its name."""
    parser.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show tracebacks")
    parser.add_argument(
        "-q", "--quiet", action="store_true", default=argparse.SUPPRESS, help="no logs, no progress on stderr"
    )


MAX_DIGITS = 18
"""Of what still fits into 64 bits."""


def count(text: str) -> int:
    """A flag's whole number of at least 1."""
    if len(text) > MAX_DIGITS:
        raise argparse.ArgumentTypeError(f"must have at most {MAX_DIGITS} digits, got {len(text)}")
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


def readable_file(text: str) -> Path:
    """A flag's file that is there: looked for before anything is loaded."""
    path = Path(text)
    if path.is_dir() or not os.access(path, os.R_OK):
        raise argparse.ArgumentTypeError(f"must be a file that can be read, got {text}")
    return path


def writable_file(text: str) -> Path:
    """A flag's file to be written once the work is done, when it would be late to find that it cannot be."""
    path = Path(text)
    place = path if path.exists() else path.parent
    if path.is_dir() or not (path.exists() or place.is_dir()) or not os.access(place, os.W_OK):
        raise argparse.ArgumentTypeError(f"must be a file that can be written, in a folder that is there, got {text}")
    return path
