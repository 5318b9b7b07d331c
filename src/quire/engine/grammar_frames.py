"""What is said between `GrammarCheck` and its child process (grammar_child.py). Needs no llguidance.

Frames are msgpack after a length of 4 bytes: first a `GrammarVocabulary`, answered by an empty `GrammarAnswer`, then one
`GrammarQuestion` and one `GrammarAnswer` in turn.
"""

from __future__ import annotations

import struct
from typing import IO

import msgspec

from quire.core.structured_outputs import Kind

LENGTH = struct.Struct("<I")


class GrammarVocabulary(msgspec.Struct, frozen=True):
    vocab_size: int
    special_tokens: dict[int, str]
    eos_token_ids: list[int]


class GrammarQuestion(msgspec.Struct, frozen=True):
    kind: Kind
    source: str


class GrammarAnswer(msgspec.Struct, frozen=True):
    """`grammar` is what llguidance compiles; without one, `refusal` says why, and `keywords` name what in a schema."""

    grammar: str = ""
    refusal: str = ""
    keywords: list[str] = []


def read_frame(stream: IO[bytes]) -> bytes | None:
    """None at the end of the stream."""
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    return stream.read(LENGTH.unpack(head)[0])


def encode_frame(message: msgspec.Struct) -> bytes:
    data = msgspec.msgpack.encode(message)
    return LENGTH.pack(len(data)) + data


def write_frame(stream: IO[bytes], message: msgspec.Struct) -> None:
    stream.write(encode_frame(message))
    stream.flush()
