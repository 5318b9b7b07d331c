"""Command-line flags that name a running server."""

from __future__ import annotations

import argparse

from quire.client.address import DEFAULT_URL, ServerAddress, parse_address


def add_server_flags(parser: argparse.ArgumentParser, *, default: str | None = DEFAULT_URL, note: str = "") -> None:
    group = parser.add_argument_group("server")
    group.add_argument(
        "--url", default=default, metavar="URL", help=note or "an OpenAI-compatible server (default: %(default)s)"
    )
    group.add_argument("--api-key", metavar="KEY", help="sent as a bearer token")


def server_address(args: argparse.Namespace) -> ServerAddress:
    """Raises InvalidRequestError."""
    return parse_address(args.url, args.api_key)
