"""Tokenizers of both kinds, small enough to read."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from quire.checkpoint.token_bytes import _BYTE_OF_CHAR
from quire.checkpoint.tokenizer_files import TokenizerFiles
from quire.checkpoint.tokenizer_json import (
    AddedToken,
    byte_level_tokenizer_json,
    sentencepiece_tokenizer_json,
)
from quire.engine.tokenizer import Tokenizer

BYTE_CHARS = {byte: char for char, byte in _BYTE_OF_CHAR.items()}


def tokenizer_files(tokenizer_json: dict[str, Any], **fields: Any) -> TokenizerFiles:
    defaults: dict[str, Any] = {
        "source": "test",
        "model_vocab_size": 1000,
        "special_tokens": {"bos_token": "<s>", "eos_token": "</s>"},
        "add_bos": True,
    }
    return TokenizerFiles(tokenizer_json=json.dumps(tokenizer_json).encode(), **(defaults | fields))


def byte_level_json() -> dict[str, Any]:
    """Ids 0-255 are the bytes; then a few merges; then special and added tokens. A new object, for tests change it."""
    pieces = [BYTE_CHARS[byte] for byte in range(256)] + ["Ġt", "Ġth", "Ġthe", "EN", "END", "ðŁ", "ĠðŁ"]
    merges = ["Ġ t", "Ġt h", "Ġth e", "E N", "EN D", "ð Ł", "Ġ ðŁ"]
    added: list[AddedToken] = [
        AddedToken(263, "<s>", special=True),
        AddedToken(264, "</s>", special=True),
        AddedToken(265, "<tool é>"),
    ]
    result: dict[str, Any] = json.loads(
        byte_level_tokenizer_json("gpt-2", {piece: i for i, piece in enumerate(pieces)}, merges, added)
    )
    return result


def sentencepiece_json(add_space_prefix: bool) -> dict[str, Any]:
    """Special tokens, the bytes, then pieces with scores. A new object, for tests change it."""
    learned = ["▁", "t", "h", "e", "▁t", "▁th", "▁the", "c", "a", "▁c", "▁ca", "▁cat", "日", "本", "日本", "x"]
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *learned]
    scores = {259 + index: -float(index) for index in range(len(learned))}
    added: list[AddedToken] = [
        AddedToken(0, "<unk>", special=True),
        AddedToken(1, "<s>", special=True),
        AddedToken(2, "</s>", special=True),
    ]
    result: dict[str, Any] = json.loads(
        sentencepiece_tokenizer_json(pieces, scores, added, unk_token="<unk>", add_space_prefix=add_space_prefix)
    )
    return result


@cache
def small_tokenizer(kind: str) -> Tokenizer:
    """`byte-level`, `sentencepiece`, or `sentencepiece-prefix` (which writes a space before the text)."""
    if kind == "byte-level":
        return Tokenizer(tokenizer_files(byte_level_json()))
    return Tokenizer(tokenizer_files(sentencepiece_json(kind == "sentencepiece-prefix")))


KINDS = ("byte-level", "sentencepiece", "sentencepiece-prefix")
