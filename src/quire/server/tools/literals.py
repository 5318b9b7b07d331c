"""Values written in JSON or as Python literals become JSON while they arrive.

Models mix the two notations, so one reader takes both: JSON, and besides it single quotes, True/False/None, tuples,
trailing commas, Python's escapes and numbers, and control characters within strings. What comes out is always JSON,
written as `json.dumps` writes it. Only literals are read: a name, a call or an expression is malformed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from quire.server.text_reader import SPACE, MalformedTextError, Reading, TextEndedError, TextReader

MAX_DEPTH = 64
"""Lists and dicts within each other."""

MAX_NUMBER_CHARS = 400
"""No float has more digits before its point; JSON readers refuse integers of some thousand."""

Write = Callable[[str], None]

_CLOSERS = {"{": "}", "[": "]", "(": ")"}
_ATOM = re.compile(r"[\w.+-]+")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_WORDS = {"true": "true", "false": "false", "null": "null", "True": "true", "False": "false", "None": "null"}
_PLAIN = {'"': re.compile(r'[^"\\\x00-\x1f]+'), "'": re.compile(r"[^'\\\x00-\x1f]+")}
_SIMPLE_ESCAPES = {**{char: "\\" + char for char in '"\\/bfnrt'}, "'": "'", "\n": ""}
_NUM_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}
_HEX = re.compile(r"[0-9a-fA-F]+")


def read_value(reader: TextReader, write: Write, prefix: str = "") -> Reading[None]:
    """Read one value; its JSON goes to `write` in pieces, the first of them behind `prefix`.

    A piece is written once the text so far is the beginning of a value. Raises MalformedTextError, TextEndedError.
    """
    closers: list[str] = []
    may_close = needs_comma = needs_key = False
    while True:
        char = yield from reader.peek_visible()
        if may_close and char == closers[-1]:
            reader.skip()
            write("}" if closers.pop() == "}" else "]")
            if not closers:
                return
            needs_comma = True
        elif needs_comma:
            yield from reader.expect(",")
            prefix, needs_comma, needs_key = ", ", False, closers[-1] == "}"
        elif needs_key:
            yield from read_string(reader, write, prefix)
            yield from reader.expect(":")
            prefix, may_close, needs_key = ": ", False, False
        elif char in _CLOSERS:
            if len(closers) == MAX_DEPTH:
                raise MalformedTextError
            reader.skip()
            write(prefix + ("{" if char == "{" else "["))
            closers.append(_CLOSERS[char])
            prefix, may_close, needs_key = "", True, char == "{"
        else:
            yield from _read_scalar(reader, char, write, prefix)
            if not closers:
                return
            may_close = needs_comma = True


def read_string(reader: TextReader, write: Write, prefix: str = "") -> Reading[None]:
    """Read a string in single or double quotes; its JSON goes to `write` in pieces."""
    quote = yield from reader.peek_visible()
    if quote not in _PLAIN:
        raise MalformedTextError
    reader.skip()
    write(prefix + '"')
    while True:
        char = yield from reader.peek()
        if char == quote:
            reader.skip()
            write('"')
            return
        if char == "\\":
            yield from _read_escape(reader, write)
        elif char < " ":
            reader.skip()
            write(json.dumps(char)[1:-1])
        else:
            write(reader.take_ready(_PLAIN[quote]).replace('"', '\\"'))


def read_text(reader: TextReader) -> Reading[str]:
    """Read a string and decode it."""
    pieces: list[str] = []
    yield from read_string(reader, pieces.append)
    return str(json.loads("".join(pieces)))


def to_json(text: str) -> str:
    """The JSON of a whole text that holds one value; halves of surrogate pairs, which UTF-8 has no bytes for, are escaped.

    Raises MalformedTextError.
    """
    reader = TextReader()
    reader.feed(text)
    reader.close()
    pieces: list[str] = []
    try:
        for _ in _read_only_value(reader, pieces.append):
            pass
    except TextEndedError:
        raise MalformedTextError from None
    return "".join(pieces).encode(errors="backslashreplace").decode()


def _read_only_value(reader: TextReader, write: Write) -> Reading[None]:
    yield from read_value(reader, write)
    yield from reader.take(SPACE)
    if (yield from reader.fill()):
        raise MalformedTextError


def _read_escape(reader: TextReader, write: Write) -> Reading[None]:
    char = (yield from reader.peek(2))[1]
    if char in _SIMPLE_ESCAPES:
        reader.skip(2)
        write(_SIMPLE_ESCAPES[char])
        return
    num_digits = _NUM_HEX_DIGITS.get(char)
    if num_digits is not None:
        digits = (yield from reader.peek(2 + num_digits))[2:]
        if _HEX.fullmatch(digits) and (code := int(digits, 16)) <= 0x10FFFF:
            reader.skip(2 + num_digits)
            write(json.dumps(chr(code))[1:-1])
            return
    reader.skip()
    write("\\\\")  # as Python has it: what is no escape is a backslash


def _read_scalar(reader: TextReader, char: str, write: Write, prefix: str) -> Reading[None]:
    if char in _PLAIN:
        yield from read_string(reader, write, prefix)
        return
    atom = yield from reader.take(_ATOM)
    yield from reader.peek()  # only what follows shows that it is complete
    write(prefix + _atom_to_json(atom))


def _atom_to_json(atom: str) -> str:
    if atom in _WORDS:
        return _WORDS[atom]
    if len(atom) > MAX_NUMBER_CHARS:
        raise MalformedTextError
    if _NUMBER.fullmatch(atom):
        return atom
    for number in (int, float):
        try:
            return json.dumps(number(atom), allow_nan=False)
        except ValueError:
            continue
    raise MalformedTextError
