"""Command-line flags of the engine, made from the fields of EngineConfig: each knob has its help and default there."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import Any, get_args, get_type_hints

from quire.config import EngineConfig

COMMON = ("model", "dtype", "max_model_len", "memory_utilization", "backend", "num_threads")
"""What every command that runs a model takes."""


def add_engine_flags(parser: argparse.ArgumentParser, names: tuple[str, ...]) -> None:
    """Add `--max-model-len` for `max_model_len` and so on; flags left out keep EngineConfig's default."""
    parser.set_defaults(engine_flags=names)
    group = parser.add_argument_group("engine")
    types = get_type_hints(EngineConfig)
    for knob in fields(EngineConfig):
        if knob.name not in names:
            continue
        flags = ["-m", "--model"] if knob.name == "model" else [f"--{knob.name.replace('_', '-')}"]
        help_line = knob.metadata["help"]
        if knob.default is not None and "default" not in help_line:
            help_line += f" (default: {knob.default})"
        group.add_argument(
            *flags,
            dest=knob.name,
            default=argparse.SUPPRESS,
            help=help_line.replace("%", "%%"),
            **_parsing(types[knob.name], knob.metadata["choices"]),
        )


def engine_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """The engine flags that were given, as keyword arguments of `EngineConfig`, `LLM` and `AsyncLLM`."""
    return {name: value for name, value in vars(args).items() if name in args.engine_flags}


def _parsing(kind: Any, choices: tuple[str, ...] | None) -> dict[str, Any]:
    """How argparse reads a field of type `kind`: int, `int | None`, float, bool, str or one of `choices`."""
    if choices is not None:
        return {"choices": choices}
    if kind is bool:
        return {"action": argparse.BooleanOptionalAction}
    plain = next((option for option in get_args(kind) if option is not type(None)), kind)
    return {"type": plain, "metavar": {int: "N", float: "F", str: "NAME"}[plain]}
