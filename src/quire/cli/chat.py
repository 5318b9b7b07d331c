"""Talk to a model, here or (--url) on a server. Ctrl-C stops an answer, /clear forgets the conversation, /exit (or Ctrl-D) leaves.

Without a terminal each line of stdin but /clear and /exit is one message; the exit code is 1 if one was not answered.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import ExitStack, aclosing
from functools import partial

from quire.cli.answer import ShownAnswer, tell
from quire.cli.engine_flags import OF_EVERY_MODEL, add_engine_flags, engine_arguments
from quire.cli.sampling_flags import add_sampling_flags, request_fields, sampling_params
from quire.cli.server_flags import add_server_flags, check_who_computes
from quire.client.address import RemoteError, parse_address
from quire.client.discovery import find_model
from quire.client.remote_chat import RemoteModel
from quire.core.outputs import check_sample
from quire.core.sampling_params import OutputKind, SamplingParams
from quire.engine.async_llm import AsyncLLM
from quire.errors import GenerationFailedError, InvalidRequestError

Message = dict[str, str]
Answer = Callable[[list[Message]], AsyncGenerator[tuple[str, int], None]]
"""Pieces of text, each with the number of tokens it stands for. Closing the generator stops the answer."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--system", metavar="TEXT", help="system message (default: the model's own)")
    add_server_flags(parser, default=None, note="talk to an OpenAI-compatible server; --model is then its name there")
    add_sampling_flags(parser, max_tokens=1024, temperature=0.7)
    add_engine_flags(parser, OF_EVERY_MODEL)


def run(args: argparse.Namespace) -> int:
    check_who_computes(args, sends_model=True)
    system: list[Message] = [{"role": "system", "content": args.system}] if args.system else []
    with ExitStack() as stack:
        if args.url is not None:
            address = parse_address(args.url, args.api_key)
            name = find_model(address, engine_arguments(args).get("model")).name
            answer: Answer = partial(RemoteModel(address, name).chat, fields=request_fields(args))
        else:
            llm = AsyncLLM(**engine_arguments(args))
            stack.callback(llm.shutdown)
            answer = partial(_answer_here, llm, sampling_params(args, OutputKind.DELTA))
        runner = stack.enter_context(asyncio.Runner())
        return ChatSession(answer, system, runner, quiet=args.quiet).run()


async def _answer_here(
    llm: AsyncLLM, params: SamplingParams, messages: list[Message]
) -> AsyncGenerator[tuple[str, int], None]:
    """As `RemoteModel.chat` does, from a model in this process."""
    async with aclosing(llm.chat(messages, params)) as outputs:
        async for output in outputs:
            check_sample(output.outputs[0])
            yield output.outputs[0].text, len(output.outputs[0].token_ids)


class ChatSession:
    """The turns so far and the loop that adds to them. `quiet` leaves out how fast an answer came."""

    def __init__(self, answer: Answer, system: list[Message], runner: asyncio.Runner, *, quiet: bool) -> None:
        self._answer = answer
        self._system = system
        self._runner = runner
        self._quiet = quiet
        self._messages = list(system)
        self._interactive = sys.stdin.isatty()
        self._failed = False

    def run(self) -> int:
        """Until /exit or the end of the input; returns the exit code. On a terminal Ctrl-C never leaves, whenever it comes."""
        if self._interactive:
            # Programs started by a script in the background inherit an ignored Ctrl-C; on a terminal it must count.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            _import_line_editing()
            tell("Type a message. Ctrl-C stops an answer; /clear forgets the conversation; /exit leaves.")
        while True:
            try:
                message = input("> " if self._interactive else "").strip()
                if message == "/exit":
                    return self._exit_code()
                self._obey(message)
            except EOFError:
                return self._exit_code()
            except KeyboardInterrupt:
                if not self._interactive:
                    raise
                tell("\n/exit (or Ctrl-D) leaves.")

    def _exit_code(self) -> int:
        """On a terminal who talks has seen what failed."""
        return int(self._failed and not self._interactive)

    def _obey(self, message: str) -> None:
        if message == "/clear":
            self._messages = list(self._system)
            tell("Conversation cleared.")
        elif message.startswith("/") and self._interactive:
            tell("The commands are /clear and /exit.")
        elif message:
            self._take_turn(message)

    def _take_turn(self, message: str) -> None:
        answer = ShownAnswer()
        self._messages.append({"role": "user", "content": message})
        try:
            # The runner turns Ctrl-C into a cancellation of the task: the request is aborted, the connection closed.
            self._runner.run(self._stream(answer))
        except KeyboardInterrupt:
            if not self._interactive:
                raise
            tell(f"\n(stopped) {answer.speed()}")
        except (InvalidRequestError, GenerationFailedError, RemoteError) as error:
            self._messages.pop()
            self._failed = True
            if answer.text:
                print(flush=True)
            tell(f"error: {error} /clear starts over.")
            return
        self._messages.append({"role": "assistant", "content": answer.text})

    async def _stream(self, answer: ShownAnswer) -> None:
        async with aclosing(self._answer(self._messages)) as pieces:
            async for text, num_tokens in pieces:
                answer.append(text, num_tokens)
                print(text, end="", flush=True)
        print(flush=True)
        if not self._quiet:
            tell(answer.speed())


def _import_line_editing() -> None:
    """Arrow keys and history in input(); Windows has its own."""
    try:
        import readline  # noqa: F401
    except ImportError:
        return
