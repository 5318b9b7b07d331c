"""Command-line flags that name a running server."""

from __future__ import annotations

import argparse

from quire.cli.config_flags import flag
from quire.cli.engine_flags import engine_arguments
from quire.client.address import DEFAULT_URL
from quire.errors import InvalidRequestError


def add_server_flags(parser: argparse.ArgumentParser, *, default: str | None = DEFAULT_URL, note: str = "") -> None:
    group = parser.add_argument_group("server")
    group.add_argument(
        "--url", default=default, metavar="URL", help=note or "an OpenAI-compatible server (default: %(default)s)"
    )
    group.add_argument("--api-key", metavar="KEY", help="sent as a bearer token")


def check_who_computes(args: argparse.Namespace, *, sends_model: bool) -> None:
    """For commands that ask a server (--url) or run a model themselves. Raises InvalidRequestError for flags of the other of the two;
    with `sends_model`, --model is a name that a server is sent too."""
    if args.url is None:
        if args.api_key is not None:
            raise InvalidRequestError("--api-key is for the server that --url names; add it.", field="api_key")
        return
    given = [name for name in engine_arguments(args) if not (sends_model and name == "model")]
    if given:
        flags = ", ".join(map(flag, given))
        raise InvalidRequestError(f"With --url the server's engine computes; leave out {flags}.", field=given[0])
