"""Tokenizers rebuilt from GGUF metadata, so that text becomes the same ids as with the model's original tokenizer."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from quire.checkpoint.cache_dir import cache_dir
from quire.checkpoint.families.fields import ConfigFields
from quire.checkpoint.gguf.metadata import TokenType
from quire.checkpoint.tokenizer_files import TokenizerFiles
from quire.checkpoint.tokenizer_json import (
    WORD_START,
    AddedToken,
    byte_level_tokenizer_json,
    sentencepiece_tokenizer_json,
)
from quire.errors import CheckpointError, QuireError, UnsupportedModelError

Metadata = Mapping[str, Any]
_REBUILD_VERSION = 2
"""Raise it when rebuilding changes: files cached by an older quire are then left unread."""
DIGEST_BYTES = hashlib.sha256().digest_size
"""In front of what is cached, of all that follows."""
_PREFIX = "tokenizer.ggml."

T = TypeVar("T")


def read_gguf_tokenizer(
    metadata: Metadata, source: str, model_vocab_size: int, eos_token_ids: tuple[int, ...]
) -> TokenizerFiles:
    """The tokenizer a GGUF file describes. Raises CheckpointError or UnsupportedModelError.

    Deriving a SentencePiece model's merges takes seconds, so the result is cached, by the metadata that it is made of.
    """
    fields = ConfigFields(metadata, source, _PREFIX)
    kind, pre_tokenizer = fields.text("model"), fields.text("pre")
    tokens = _required(fields, "tokens", fields.texts("tokens"))
    if kind == "gpt2":
        tokenizer_json = _rebuild_byte_level(fields, tokens, "default" if pre_tokenizer is None else pre_tokenizer)
    elif kind == "llama":
        tokenizer_json = _cached(metadata, lambda: _rebuild_sentencepiece(fields, tokens))
    else:
        raise fields.unsupported("model", "gpt2 and llama")
    adds_bos_unless_told = kind == "llama" or pre_tokenizer == "llama-bpe"
    return TokenizerFiles(
        source=source,
        tokenizer_json=tokenizer_json,
        model_vocab_size=model_vocab_size,
        special_tokens=_named_tokens(fields, tokens),
        eos_token_ids=eos_token_ids,
        add_bos=fields.flag("add_bos_token", adds_bos_unless_told),
        chat_templates=_chat_templates(ConfigFields(metadata, source)),
    )


def _rebuild_byte_level(fields: ConfigFields, tokens: Sequence[str], pre_tokenizer: str) -> bytes:
    merges = _required(fields, "merges", fields.texts("merges"))
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    added_tokens = _added_tokens(tokens, _token_types(fields, len(tokens)))
    return byte_level_tokenizer_json(pre_tokenizer, vocab, merges, added_tokens)


def _rebuild_sentencepiece(fields: ConfigFields, tokens: Sequence[str]) -> bytes:
    if fields.integers("precompiled_charsmap"):
        raise UnsupportedModelError(
            f"{fields.source}: the tokenizer normalizes text by a character map (tokenizer.ggml.precompiled_charsmap),"
            " which is not supported; use the model's safetensors directory instead."
        )
    scores = _required(fields, "scores", fields.numbers("scores"), length=len(tokens))
    types = _token_types(fields, len(tokens))
    # Converters write the tokens made of spaces as spaces; text reaches the merges with each space as WORD_START.
    pieces = [token.replace(" ", WORD_START) for token in tokens]
    merge_scores = {
        # GGUF scores a user-defined piece low; SentencePiece scores it 0, the highest, and so never splits it.
        token_id: 0.0 if token_type == TokenType.USER_DEFINED else float(scores[token_id])
        for token_id, token_type in enumerate(types)
        if token_type in (TokenType.NORMAL, TokenType.USER_DEFINED)
    }
    unknown = _token_id(fields, "unknown", tokens)
    return sentencepiece_tokenizer_json(
        pieces,
        merge_scores,
        _added_tokens(pieces, types),
        unk_token=None if unknown is None else pieces[unknown],
        add_space_prefix=fields.flag("add_space_prefix", True),
    )


def _required(fields: ConfigFields, name: str, array: list[T] | None, *, length: int | None = None) -> list[T]:
    """The array read from that field, which must be there and, where it is given, of that length."""
    if array is None:
        raise CheckpointError(
            f"{fields.source} has no {_PREFIX}{name}; the file carries no usable tokenizer, fetch another one."
        )
    if length is not None and len(array) != length:
        raise CheckpointError(
            f"{fields.source}: {_PREFIX}{name} has {len(array)} entries for {length} tokens; the file is damaged."
        )
    return array


def _token_types(fields: ConfigFields, num_tokens: int) -> Sequence[int]:
    types = fields.integers("token_type")
    if types is None:
        return [TokenType.NORMAL] * num_tokens
    return _required(fields, "token_type", types, length=num_tokens)


def _added_tokens(tokens: Sequence[str], types: Sequence[int]) -> list[AddedToken]:
    """The tokens that text names literally: control tokens are special, user-defined ones are ordinary text."""
    literal = (TokenType.UNKNOWN, TokenType.CONTROL, TokenType.USER_DEFINED)
    return [
        AddedToken(token_id, token, special=token_type != TokenType.USER_DEFINED)
        for token_id, (token, token_type) in enumerate(zip(tokens, types, strict=True))
        if token_type in literal
    ]


def _token_id(fields: ConfigFields, name: str, tokens: Sequence[str]) -> int | None:
    return fields.optional_integer(f"{name}_token_id", minimum=0, maximum=len(tokens) - 1)


def _named_tokens(fields: ConfigFields, tokens: Sequence[str]) -> dict[str, str]:
    names = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
    ids = {role: _token_id(fields, name, tokens) for name, role in names.items()}
    return {role: tokens[token_id] for role, token_id in ids.items() if token_id is not None}


def _chat_templates(fields: ConfigFields) -> dict[str, str]:
    """The one of the key itself is `default`, those of keys beginning with it are for special uses."""
    key = "tokenizer.chat_template"
    texts = {"default": fields.text(key)}
    texts |= {name.removeprefix(f"{key}."): fields.text(name) for name in fields.names(f"{key}.")}
    return {name: text for name, text in texts.items() if text is not None}


def _cached(metadata: Metadata, rebuild: Callable[[], bytes]) -> bytes:
    """What `rebuild` makes, from the cache directory if it is there, whole. A cache that cannot be used is done without."""
    own = {key: value for key, value in sorted(metadata.items()) if key.startswith(_PREFIX)}
    name = hashlib.sha256(msgspec.msgpack.encode([_REBUILD_VERSION, own])).hexdigest()
    try:
        path = cache_dir() / "tokenizers" / name
    except QuireError:
        return rebuild()
    try:
        kept = path.read_bytes()
    except OSError:
        kept = b""
    digest, tokenizer_json = kept[:DIGEST_BYTES], kept[DIGEST_BYTES:]
    if digest == hashlib.sha256(tokenizer_json).digest():
        return tokenizer_json
    tokenizer_json = rebuild()
    with suppress(OSError):
        _write(path, hashlib.sha256(tokenizer_json).digest() + tokenizer_json)
    return tokenizer_json


def _write(path: Path, content: bytes) -> None:
    """All of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        try:
            file.write(content)
            file.flush()
            os.replace(file.name, path)
        except OSError:
            os.unlink(file.name)
            raise
