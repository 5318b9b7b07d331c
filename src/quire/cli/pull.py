"""Fetch a built-in model into the user's cache directory. Safe to repeat and to interrupt."""

from __future__ import annotations

import argparse

from quire.checkpoint.catalog import BUILTIN_MODELS
from quire.checkpoint.pull import pull
from quire.errors import InvalidRequestError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help=f"one of: {', '.join(BUILTIN_MODELS)}")
    parser.add_argument("--list", action="store_true", help="list the built-in models")


def run(args: argparse.Namespace) -> None:
    if args.list:
        width = max(map(len, BUILTIN_MODELS))
        for model in BUILTIN_MODELS.values():
            print(f"{model.name:<{width}}  {model.description} ({model.license})")
        return
    if args.name is None:
        raise InvalidRequestError(f"Name the model to fetch: {', '.join(BUILTIN_MODELS)}.", field="name")
    print(pull(args.name))
