"""What bytes each token stands for, so that text can be decoded token by token.

A tokenizer.json says how tokens become text as a chain of decoders over all tokens at once. For the kinds of
vocabulary language models use, that chain is the concatenation of fixed bytes, one string of bytes a token:

- byte-level BPE (GPT-2, Llama 3, Qwen, SmolLM): every character of a token stands for one byte;
- SentencePiece (Llama 2, Mistral, Gemma): a token is text with a mark for each space, or one byte written <0xE2>.
  Some chains also drop one space at the very start of the text;
- WordPiece (BERT): a token is a word, with a space before it, or the rest of one, marked ##.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from quire.checkpoint.tokenizer_json import AddedToken
from quire.errors import UnsupportedModelError

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_NO_SPACE_BEFORE = re.compile(r"[.?!,]|n't|'(m|s|ve|re)")
"""Tokens that WordPiece's `cleanup` attaches to the word before them."""


@dataclass(frozen=True, slots=True)
class TokenDecoder:
    """`to_bytes(token, is_added)`: an added token's text stands for itself where the vocabulary's is byte-level."""

    to_bytes: Callable[[str, bool], bytes]
    strips_leading_space: bool


def read_token_decoder(decoder: Mapping[str, Any] | None) -> TokenDecoder:
    """The token decoder for a tokenizer.json's `decoder` entry.

    Raises UnsupportedModelError for a decoder whose text is not a concatenation of its tokens' bytes.
    """
    if decoder is None:  # the library then joins tokens with spaces
        return TokenDecoder(lambda token, is_added: f" {token}".encode(), strips_leading_space=True)
    steps: list[Mapping[str, Any]] = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    if [step["type"] for step in steps] == ["ByteLevel"]:
        return TokenDecoder(_byte_level_to_bytes, strips_leading_space=False)
    match steps:
        case [{"type": "WordPiece", "prefix": str(prefix), "cleanup": bool(cleanup)}]:
            return TokenDecoder(_word_piece_to_bytes(prefix, cleanup), strips_leading_space=True)
    replacements: list[tuple[str, str]] = []
    byte_fallback = strips_leading_space = False
    for step in steps:
        match step:
            case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)}:
                replacements.append((old, new))
            case {"type": "Metaspace", "replacement": str(mark)}:
                replacements.append((mark, " "))
                strips_leading_space = step.get("prepend_scheme", "always") != "never"
            case {"type": "ByteFallback"}:
                byte_fallback = True
            case {"type": "Fuse"}:
                pass
            case {"type": "Strip", "content": " ", "start": 1, "stop": 0}:
                strips_leading_space = True
            case _:
                raise UnsupportedModelError(
                    f"The tokenizer's decoder has the step {json.dumps(step)[:200]}; supported are ByteLevel, WordPiece"
                    " and chains of Replace, Metaspace, ByteFallback, Fuse and Strip of one leading space."
                )

    def to_bytes(token: str, is_added: bool) -> bytes:
        byte = _BYTE_PIECE.fullmatch(token) if byte_fallback else None
        if byte is not None:
            return bytes.fromhex(byte[1])
        for old, new in replacements:
            token = token.replace(old, new)
        return token.encode()

    return TokenDecoder(to_bytes, strips_leading_space)


def _word_piece_to_bytes(prefix: str, cleanup: bool) -> Callable[[str, bool], bytes]:
    def to_bytes(token: str, is_added: bool) -> bytes:
        if prefix and token.startswith(prefix):
            return token.removeprefix(prefix).encode()
        attached = cleanup and _NO_SPACE_BEFORE.fullmatch(token)
        return token.encode() if attached else f" {token}".encode()

    return to_bytes


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's printable character for every byte: itself if printable Latin-1, else the next from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(0x100 + index): byte for index, byte in enumerate(others)}


_BYTE_OF_CHAR = _byte_level_alphabet()


def _byte_level_to_bytes(token: str, is_added: bool) -> bytes:
    if is_added:
        return token.encode()
    try:
        return bytes(_BYTE_OF_CHAR[char] for char in token)
    except KeyError:
        return token.encode()


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """`tokens[id]` is what the token stands for; an id that is no token has none. `special_ids` stand for no text."""

    tokens: list[bytes]
    special_ids: list[int]


MOST_UNUSED_IDS = 65_536
"""Beside one for each token: some models leave room for more."""


class _Model(msgspec.Struct):
    vocab: dict[str, int] | list[tuple[str, float]]
    """Texts and their ids; of a Unigram model texts in the order of their ids, and scores."""


class _TokenizerJson(msgspec.Struct):
    model: _Model
    decoder: dict[str, Any] | None = None
    added_tokens: list[AddedToken] = []


def read_vocabulary(tokenizer_json: bytes) -> Vocabulary:
    """Every token of a tokenizer.json, in a tenth of the time that it takes to make a tokenizer of it.

    Raises UnsupportedModelError for a decoder whose text is not a concatenation of its tokens' bytes, and for ids far
    apart, each of which takes memory; msgspec.ValidationError for what is no tokenizer.json.
    """
    parts = msgspec.json.decode(tokenizer_json, type=_TokenizerJson)
    to_bytes = read_token_decoder(parts.decoder).to_bytes
    vocab = parts.model.vocab
    ids = vocab if isinstance(vocab, dict) else {text: token_id for token_id, (text, _) in enumerate(vocab)}
    added = {token.id: token.content for token in parts.added_tokens}
    largest = max(max(ids.values(), default=-1), max(added, default=-1))
    if largest > 2 * (len(ids) + len(added)) + MOST_UNUSED_IDS:
        raise UnsupportedModelError(
            f"The tokenizer has {len(ids) + len(added)} tokens, with ids up to {largest}; save it with ids that follow each other."
        )
    tokens = [b""] * (1 + largest)
    for text, token_id in ids.items():
        tokens[token_id] = to_bytes(text, False)
    for token_id, content in added.items():
        tokens[token_id] = to_bytes(content, True)
    return Vocabulary(tokens, sorted(token.id for token in parts.added_tokens if token.special))
