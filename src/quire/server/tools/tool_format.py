"""How a family of models writes calls of tools, as data."""

from __future__ import annotations

import json
import secrets
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quire.server.text_reader import Reading
from quire.server.tools.calls import CallReader

ReadCalls = Callable[[CallReader, str], Reading[None]]
"""Reads the calls behind a marker that was just read; the marker is "" where the calls have none."""


def long_id() -> str:
    """An id as OpenAI's servers give them."""
    return f"call_{secrets.token_hex(12)}"


def nine_character_id() -> str:
    """The only form that Mistral's templates accept when the call comes back in the conversation."""
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))


@dataclass(frozen=True, slots=True)
class CallLayout:
    """The text around names and arguments when quire itself makes a model write calls.

    before call {between call} after, a call being: before_name NAME before_arguments ARGUMENTS after_arguments.
    """

    before_name: str
    before_arguments: str
    after_arguments: str
    before: str = ""
    between: str | None = None
    """None: the models write one call at a time."""
    after: str = ""
    keyword_arguments: bool = False
    """The arguments are Python's `a=1, b=2`, not an object; `**{...}` where a name of theirs is no Python name."""

    def write(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
        """Calls, as (name, arguments), the way a model writes them."""
        texts = [
            f"{self.before_name}{name}{self.before_arguments}{self._arguments(arguments)}{self.after_arguments}"
            for name, arguments in calls
        ]
        return self.before + ("\n" if self.between is None else self.between).join(texts) + self.after

    def _arguments(self, arguments: Mapping[str, Any]) -> str:
        if not self.keyword_arguments:
            return json.dumps(arguments, ensure_ascii=False)
        if all(name.isidentifier() for name in arguments):
            return ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in arguments.items())
        return f"**{json.dumps(arguments, ensure_ascii=False)}"


@dataclass(frozen=True, slots=True)
class ToolFormat:
    name: str
    markers: tuple[str, ...]
    """Texts that open calls, wherever they stand."""
    read_calls: ReadCalls
    layout: CallLayout
    signs: tuple[str, ...]
    """A chat template with one of these teaches the format,"""
    counter_signs: tuple[str, ...] = ()
    """unless it has one of these."""
    bare_opener: str = ""
    """The character that opens calls without a marker, at the beginning of an answer or after a call. Such calls
    count only if they name a tool of the request: without a marker a text of that shape may be just text."""
    other_tokens: tuple[str, ...] = ()
    """Texts besides the markers that are single tokens in some vocabularies."""
    make_id: Callable[[], str] = long_id
    arguments_as_text: bool = False
    """The template puts the arguments of past calls out as a string; others take an object."""

    def is_taught_by(self, chat_template: str) -> bool:
        """Whether a model with this template writes calls in this format."""
        return any(sign in chat_template for sign in self.signs) and not any(
            sign in chat_template for sign in self.counter_signs
        )
