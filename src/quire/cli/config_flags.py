"""Command-line flags made from the fields of a configuration: each knob has its help and default there."""

from __future__ import annotations

import argparse
from collections.abc import Container
from dataclasses import fields
from typing import Any, get_args, get_origin, get_type_hints

SHORT_FLAGS = {"model": "-m"}


def flag(name: str) -> str:
    """The flag of a field."""
    return f"--{name.replace('_', '-')}"


def given_flags(args: argparse.Namespace, names: Container[str]) -> dict[str, Any]:
    """The flags that were given, as keyword arguments of their configuration, which has tuples for lists."""
    given = {name: value for name, value in vars(args).items() if name in names}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}


def add_config_flags(parser: argparse.ArgumentParser, title: str, config: type, names: Container[str]) -> None:
    """Add `--max-model-len` for `max_model_len` and so on; flags left out keep the configuration's default."""
    group = parser.add_argument_group(title)
    types = get_type_hints(config)
    for knob in fields(config):
        if knob.name not in names:
            continue
        short = [SHORT_FLAGS[knob.name]] if knob.name in SHORT_FLAGS else []
        help_line = knob.metadata["help"]
        if knob.default not in (None, ()) and "default" not in help_line:
            help_line += f" (default: {knob.default})"
        group.add_argument(
            *short,
            flag(knob.name),
            dest=knob.name,
            default=argparse.SUPPRESS,
            help=help_line.replace("%", "%%"),
            **_parsing(types[knob.name], knob.metadata["choices"]),
        )


def _parsing(kind: Any, choices: tuple[str, ...] | None) -> dict[str, Any]:
    """How argparse reads a field of type `kind`: int, `int | None`, float, bool, str, tuple[str, ...] or `choices`."""
    if choices is not None:
        return {"choices": choices}
    if kind is bool:
        return {"action": argparse.BooleanOptionalAction}
    if get_origin(kind) is tuple:
        return {"action": "append", "metavar": "TEXT"}
    plain = next((option for option in get_args(kind) if option is not type(None)), kind)
    return {"type": plain, "metavar": {int: "N", float: "F", str: "NAME"}[plain]}
