"""Prompts as they come: words of the command, or all of stdin."""

from __future__ import annotations

import sys

from quire.cli.answer import tell
from quire.errors import InvalidRequestError


def given_or_stdin(prompts: list[str]) -> list[str]:
    """The prompts, or the one on stdin where there are none. Raises InvalidRequestError for an empty one."""
    if not prompts:
        if sys.stdin.isatty():
            tell("Type the prompt; Ctrl-D at the start of a line ends it.")
        prompts = [sys.stdin.read().rstrip("\n")]
    if "" in prompts:
        raise InvalidRequestError("The prompt is empty; give at least one character.", field="prompt", value="")
    return prompts
