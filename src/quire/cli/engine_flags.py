"""Command-line flags of the engine."""

from __future__ import annotations

import argparse
from typing import Any

from quire.cli.config_flags import add_config_flags, flag, given_flags
from quire.config import EngineConfig

OF_EVERY_MODEL = (
    "model",
    "dtype",
    "quantization",
    "kv_cache_dtype",
    "max_model_len",
    "memory_utilization",
    "backend",
    "instruction_set",
    "num_threads",
)
"""What every command that runs a model takes."""


def add_engine_flags(parser: argparse.ArgumentParser, names: tuple[str, ...]) -> None:
    parser.set_defaults(engine_flags=names)
    add_config_flags(parser, "engine", EngineConfig, names)


def engine_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """The engine flags that were given, as keyword arguments of `EngineConfig`, `LLM` and `AsyncLLM`."""
    return given_flags(args, args.engine_flags)


def engine_flag_words(args: argparse.Namespace) -> list[str]:
    """The engine flags that were given, as words of `quire serve`, where the model comes first and without a flag."""
    given = engine_arguments(args)
    words = [str(given.pop("model"))] if "model" in given else []
    for name, value in given.items():
        if isinstance(value, bool):
            words.append(flag(name if value else f"no_{name}"))
        else:
            words += [flag(name), str(value)]
    return words
