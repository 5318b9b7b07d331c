"""Command-line flags of sampling, for the commands that generate text."""

from __future__ import annotations

import argparse
from typing import Any

from quire.core.sampling_params import OutputKind, SamplingParams


def add_sampling_flags(parser: argparse.ArgumentParser, *, max_tokens: int, temperature: float) -> None:
    group = parser.add_argument_group("sampling")
    group.add_argument(
        "-n", "--max-tokens", type=int, default=max_tokens, metavar="N", help="longest output (default: %(default)s)"
    )
    group.add_argument(
        "-t",
        "--temperature",
        type=float,
        default=temperature,
        metavar="F",
        help="0 always takes the likeliest token (default: %(default)s)",
    )
    group.add_argument("--top-p", type=float, default=1.0, metavar="F", help="keep the likeliest tokens of this mass")
    group.add_argument("--seed", type=int, metavar="N", help="the same seed gives the same text")
    group.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end at this text (repeatable)")


def sampling_params(args: argparse.Namespace, output_kind: OutputKind) -> SamplingParams:
    """Raises InvalidRequestError naming the flag's field."""
    return SamplingParams(
        max_tokens=args.max_tokens,
        temperature=args.temperature,
        top_p=args.top_p,
        seed=args.seed,
        stop=tuple(args.stop),
        output_kind=output_kind,
    )


def request_fields(args: argparse.Namespace) -> dict[str, Any]:
    """The same as fields of an OpenAI request; defaults are left out, which some servers do not know."""
    fields: dict[str, Any] = {"max_tokens": args.max_tokens, "temperature": args.temperature}
    given: dict[str, tuple[Any, Any]] = {"top_p": (args.top_p, 1.0), "seed": (args.seed, None), "stop": (args.stop, [])}
    return fields | {name: value for name, (value, default) in given.items() if value != default}
