"""Continue a prompt on a running server, as the text comes. Ctrl-C stops it."""

from __future__ import annotations

import argparse
import asyncio
from contextlib import aclosing

from quire.cli.answer import ShownAnswer, tell
from quire.cli.prompts import given_or_stdin
from quire.cli.sampling_flags import add_sampling_flags, request_fields
from quire.cli.server_flags import add_server_flags
from quire.client.address import parse_address
from quire.client.discovery import find_model
from quire.client.remote_chat import RemoteModel


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", nargs="?", metavar="PROMPT", help="text to continue (default: read from stdin)")
    add_server_flags(parser)
    parser.add_argument("-m", "--model", metavar="NAME", help="as the server knows it (default: its first)")
    add_sampling_flags(parser, max_tokens=128, temperature=1.0)


def run(args: argparse.Namespace) -> None:
    address = parse_address(args.url, args.api_key)
    model = RemoteModel(address, find_model(address, args.model).name)
    (prompt,) = given_or_stdin([] if args.prompt is None else [args.prompt])
    answer = ShownAnswer()
    try:
        asyncio.run(_stream(model, prompt, args, answer))
    except KeyboardInterrupt:
        tell(f"(stopped) {answer.speed()}")
        return
    if not args.quiet:
        tell(answer.speed())


async def _stream(model: RemoteModel, prompt: str, args: argparse.Namespace, answer: ShownAnswer) -> None:
    async with aclosing(model.complete(prompt, request_fields(args))) as pieces:
        print(prompt, end="", flush=True)
        try:
            async for text, num_tokens in pieces:
                answer.append(text, num_tokens)
                print(text, end="", flush=True)
        finally:
            # What is told of an answer that failed or was stopped begins on a line of its own.
            print(flush=True)
