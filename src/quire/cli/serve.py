"""Serve a model over HTTP: the OpenAI API, a page to chat and to watch the engine at /, metrics at /metrics."""

from __future__ import annotations

import argparse
import os
from dataclasses import fields
from pathlib import Path

from quire.checkpoint.small_file import MAX_SETTINGS_BYTES, read_small_text
from quire.cli.config_flags import add_config_flags, given_flags
from quire.cli.engine_flags import add_engine_flags, engine_arguments
from quire.config import MODEL_HELP, EngineConfig, ServerConfig
from quire.errors import InvalidRequestError, in_words
from quire.server.supervisor import serve

API_KEY_VARIABLE = "QUIRE_API_KEY"
SERVER_FLAGS = tuple(knob.name for knob in fields(ServerConfig))
ENGINE_FLAGS = tuple(knob.name for knob in fields(EngineConfig) if knob.name != "model")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", default="smollm2", metavar="MODEL", help=MODEL_HELP)
    # An engine that computes nothing, to measure everything else.
    parser.add_argument("--executor", choices=("uniproc", "null"), default="uniproc", help=argparse.SUPPRESS)
    add_config_flags(parser, "server", ServerConfig, SERVER_FLAGS)
    add_engine_flags(parser, ENGINE_FLAGS)


def run(args: argparse.Namespace) -> int:
    given = given_flags(args, SERVER_FLAGS)
    if API_KEY_VARIABLE in os.environ:
        given.setdefault("api_key", (os.environ[API_KEY_VARIABLE],))
    config = ServerConfig(**given)
    _check(config)
    return serve(EngineConfig(model=args.model, **engine_arguments(args)), config, args.executor)


def _check(config: ServerConfig) -> None:
    """What would come to light only in an API process, or with the first chat. Raises InvalidRequestError."""
    if (config.tool_call_parser, config.reasoning_parser) != ("auto", "auto"):
        # Imported when asked for: nothing of it is needed to open the port.
        from quire.server.reasoning.registry import choose_reasoning_style
        from quire.server.tools.registry import choose_tool_format

        choose_tool_format(config.tool_call_parser, None)
        choose_reasoning_style(config.reasoning_parser, None)
    if config.otlp_endpoint is not None:
        from quire.server.tracing_setup import check_endpoint

        check_endpoint(config.otlp_endpoint)
    if config.chat_template is not None:
        try:
            read_small_text(Path(config.chat_template), MAX_SETTINGS_BYTES)
        except (OSError, ValueError) as error:
            raise InvalidRequestError(
                f"chat_template {config.chat_template!r} cannot be read ({in_words(error)}); give the path of a Jinja"
                " template in UTF-8.",
                field="chat_template",
                value=config.chat_template,
            ) from error
