"""Serve a model over HTTP: the OpenAI API, a page to chat and to watch the engine at /, metrics at /metrics."""

from __future__ import annotations

import argparse
import os
from dataclasses import fields

from quire.cli.config_flags import add_config_flags
from quire.cli.engine_flags import add_engine_flags, engine_arguments
from quire.config import EngineConfig, ServerConfig
from quire.server.supervisor import serve

API_KEY_VARIABLE = "QUIRE_API_KEY"
SERVER_FLAGS = tuple(knob.name for knob in fields(ServerConfig))
ENGINE_FLAGS = tuple(knob.name for knob in fields(EngineConfig) if knob.name != "model")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", default="smollm2", metavar="MODEL", help="as for quire generate")
    # An engine that computes nothing, to measure everything else.
    parser.add_argument("--executor", choices=("uniproc", "null"), default="uniproc", help=argparse.SUPPRESS)
    add_config_flags(parser, "server", ServerConfig, SERVER_FLAGS)
    add_engine_flags(parser, ENGINE_FLAGS)


def run(args: argparse.Namespace) -> int:
    given = {name: value for name, value in vars(args).items() if name in SERVER_FLAGS}
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    if API_KEY_VARIABLE in os.environ:
        given.setdefault("api_key", (os.environ[API_KEY_VARIABLE],))
    return serve(EngineConfig(model=args.model, **engine_arguments(args)), ServerConfig(**given), args.executor)
