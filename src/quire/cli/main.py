"""The `quire` command. Only the chosen command's module is imported, so that `quire --help` is instant."""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys
import traceback
from typing import NoReturn, TextIO

from quire import __version__
from quire.cli.shared_flags import add_shared_flags
from quire.errors import QuireError, in_words

EXIT_ERROR, EXIT_INTERRUPTED = 1, 130

EXAMPLES = """\
examples:
  quire pull smollm2
  quire generate "The capital of France is" --max-tokens 16
  quire chat
  quire serve smollm2 --port 8000
  quire plan smollm2 --memory 2GiB --concurrency 8
  quire bench throughput --num-prompts 32 --output-len 128
"""

COMMANDS = {
    "pull": "fetch a built-in model",
    "serve": "serve a model over HTTP",
    "generate": "continue one or more prompts",
    "chat": "talk to a model",
    "complete": "continue a prompt on a server",
    "run-batch": "answer a file of requests",
    "top": "watch a server",
    "plan": "what a model needs of memory, and what fits",
    "bench": "measure a server, its start, latency or throughput",
    "collect-env": "describe this machine for a bug report",
}
"""With their help lines. Each has a module in quire.cli: add_arguments(parser), and run(args), which may return an exit code."""


class Parser(argparse.ArgumentParser):
    """argparse, with errors in the form of all of quire's."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message} (see {self.prog} --help)\n")


def main(argv: list[str] | None = None) -> int:
    """Returns the exit code: 0 success, 1 an error, 2 wrong usage (through SystemExit), 130 interrupted."""
    arguments = sys.argv[1:] if argv is None else argv
    args = argparse.Namespace(debug=False)
    _open_closed_streams()
    try:
        args, unknown = make_parser(arguments).parse_known_args(arguments)
        if unknown:
            args.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
        _set_up_logging(quiet=args.quiet)
        code = args.run(args)
        sys.stdout.flush()
    except QuireError as error:
        return _report(str(error), debug=args.debug)
    except UnicodeError as error:
        return _report(f"Text cannot be read or written: {error}; give it as UTF-8.", debug=args.debug)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader went away (quire ... | head). Python would complain again when it flushes stdout on exit.
        _drop_output(sys.stdout)
        return 0
    except OSError as error:
        _flush(sys.stdout)
        where = error.filename or "what this command writes or reads"
        return _report(f"The system refused {where}: {in_words(error)}.", debug=args.debug)
    finally:
        # What a full disk does not take of the log is lost; it must not decide on the exit code.
        _flush(sys.stderr)
    return int(code or 0)


def _set_up_logging(*, quiet: bool) -> None:
    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    logging.getLogger("quire").setLevel(logging.WARNING if quiet else logging.INFO)
    # huggingface_hub prints its own log, and sets its level from this variable when it is imported.
    logging.getLogger("huggingface_hub").propagate = False
    if quiet:
        os.environ.setdefault("HF_HUB_VERBOSITY", "error")


def _open_closed_streams() -> None:
    """Whoever started this may have closed them; Python then has None in their place.

    Programs that this one starts inherit them: the first thing they open would take the place, and get what they print.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode)  # noqa: SIM115  (for as long as the program runs)
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)


def _report(message: str, *, debug: bool) -> int:
    """Of the exception that is being handled; returns the exit code."""
    if debug:
        traceback.print_exc()
    print(f"error: {message}", file=sys.stderr)
    return EXIT_ERROR


def _flush(stream: TextIO) -> None:
    try:
        stream.flush()
    except OSError:
        _drop_output(stream)


def _drop_output(stream: TextIO) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def make_parser(arguments: list[str]) -> argparse.ArgumentParser:
    """The parser with the flags of the one command that `arguments` names."""
    parser = Parser(
        prog="quire",
        description="Run large language models on the machine you have.",
        epilog=_list_commands() + "\n" + EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_shared_flags(parser)
    parser.set_defaults(debug=False, quiet=False)
    parser.add_argument("--version", action="version", version=f"quire {__version__}")
    commands = parser.add_subparsers(
        dest="command",
        metavar="COMMAND",
        help="see below, and quire COMMAND --help",
        required=True,
        parser_class=Parser,
    )
    named = next((argument for argument in arguments if not argument.startswith("-")), None)
    for name in COMMANDS:
        module = importlib.import_module(f"quire.cli.{name.replace('-', '_')}") if name == named else None
        command_parser = commands.add_parser(
            name, description=module.__doc__ if module else None, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        add_shared_flags(command_parser)
        if module is not None:
            module.add_arguments(command_parser)
            command_parser.set_defaults(run=module.run, parser=command_parser)
    return parser


def _list_commands() -> str:
    width = max(map(len, COMMANDS))
    return "\n".join(["commands:", *(f"  {name:<{width}}  {help}" for name, help in COMMANDS.items()), ""])


if __name__ == "__main__":
    sys.exit(main())
