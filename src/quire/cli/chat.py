"""Talk to a model. Ctrl-C stops an answer, /clear forgets the conversation, /exit (or Ctrl-D) leaves.

Without a terminal each line of stdin is one message.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import time
from contextlib import aclosing

from quire.cli.engine_flags import COMMON, add_engine_flags, engine_arguments
from quire.cli.sampling_flags import add_sampling_flags, sampling_params
from quire.core.sampling_params import OutputKind, SamplingParams
from quire.engine.async_llm import AsyncLLM
from quire.engine.chat_template import render_chat
from quire.errors import InvalidRequestError

Message = dict[str, str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--system", metavar="TEXT", help="system message (default: the model's own)")
    add_sampling_flags(parser, max_tokens=1024, temperature=0.7)
    add_engine_flags(parser, COMMON)


def run(args: argparse.Namespace) -> None:
    params = sampling_params(args, OutputKind.DELTA)
    system: list[Message] = [{"role": "system", "content": args.system}] if args.system else []
    llm = AsyncLLM(**engine_arguments(args))
    try:
        with asyncio.Runner() as runner:
            Conversation(llm, params, system, runner).run()
    finally:
        llm.shutdown()


class Conversation:
    """The turns so far and the loop that adds to them."""

    def __init__(self, llm: AsyncLLM, params: SamplingParams, system: list[Message], runner: asyncio.Runner) -> None:
        self._llm = llm
        self._params = params
        self._system = system
        self._runner = runner
        self._messages = list(system)
        self._interactive = sys.stdin.isatty()

    def run(self) -> None:
        """Until /exit or the end of the input. On a terminal Ctrl-C never leaves, whenever it comes."""
        if self._interactive:
            # Programs started by a script in the background inherit an ignored Ctrl-C; on a terminal it must count.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            _import_line_editing()
            _tell("Type a message. Ctrl-C stops an answer; /clear forgets the conversation; /exit leaves.")
        while True:
            try:
                message = input("> " if self._interactive else "").strip()
                if message == "/exit":
                    return
                self._obey(message)
            except EOFError:
                return
            except KeyboardInterrupt:
                if not self._interactive:
                    raise
                _tell("\n/exit (or Ctrl-D) leaves.")

    def _obey(self, message: str) -> None:
        if message == "/clear":
            self._messages = list(self._system)
            _tell("Conversation cleared.")
        elif message.startswith("/"):
            _tell("The commands are /clear and /exit.")
        elif message:
            self._take_turn(message)

    def _take_turn(self, message: str) -> None:
        answer = Answer()
        self._messages.append({"role": "user", "content": message})
        try:
            # The runner turns Ctrl-C into a cancellation of the task, which aborts the request in the engine.
            self._runner.run(self._stream(answer))
        except KeyboardInterrupt:
            if not self._interactive:
                raise
            _tell(f"\n(stopped) {answer.speed()}")
        except InvalidRequestError as error:
            self._messages.pop()
            _tell(f"error: {error} /clear starts over.")
            return
        self._messages.append({"role": "assistant", "content": answer.text})

    async def _stream(self, answer: Answer) -> None:
        tokenizer = self._llm.get_tokenizer()
        text = render_chat(tokenizer, self._messages, add_generation_prompt=True)
        prompt = {"prompt": text, "prompt_token_ids": tokenizer.encode(text, add_special_tokens=False)}
        async with aclosing(self._llm.generate(prompt, self._params)) as outputs:
            async for output in outputs:
                answer.append(output.outputs[0].text, len(output.outputs[0].token_ids))
                print(output.outputs[0].text, end="", flush=True)
        print(flush=True)
        _tell(answer.speed())


class Answer:
    """What has been streamed of one answer, and how fast."""

    def __init__(self) -> None:
        self.text = ""
        self._num_tokens = 0
        self._start = self._first = self._last = time.perf_counter()

    def append(self, text: str, num_tokens: int) -> None:
        self._last = time.perf_counter()
        if not self._num_tokens:
            self._first = self._last
        self.text += text
        self._num_tokens += num_tokens

    def speed(self) -> str:
        """Decode speed leaves out the first token, whose time is TTFT."""
        if not self._num_tokens:
            return "no tokens"
        ttft = self._first - self._start
        decode = self._last - self._first
        rate = f"{(self._num_tokens - 1) / decode:.1f} tok/s, " if decode > 0 else ""
        return f"[{self._num_tokens} tokens, {rate}TTFT {ttft:.2f} s]"


def _tell(text: str) -> None:
    """Everything that is not the answer goes to stderr, dim where a person reads it."""
    print(f"\x1b[2m{text}\x1b[0m" if sys.stderr.isatty() else text, file=sys.stderr, flush=True)


def _import_line_editing() -> None:
    """Arrow keys and history in input(); Windows has its own."""
    try:
        import readline  # noqa: F401
    except ImportError:
        return
