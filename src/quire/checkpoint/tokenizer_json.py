"""Builders of tokenizer.json, the tokenizers library's format, from vocabularies kept in other forms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from quire.errors import UnsupportedModelError

WORD_START = "▁"
"""SentencePiece's mark for a space."""


class AddedToken(msgspec.Struct):
    """A token that text names literally, as tokenizer.json has it. A `special` one is left out of decoded text on request."""

    id: int
    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False
    special: bool = False


_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_PUNCTUATION_AND_SPACE = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _byte_level(*, use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def _split_then_bytes(pattern: str) -> dict[str, Any]:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [split, _byte_level(use_regex=False)]}


def _words_with_digit_groups(digits: str) -> dict[str, Any]:
    """cl100k's splitting of text into words, with its own rule for digits."""
    return _split_then_bytes(rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}|{_PUNCTUATION_AND_SPACE}")


_PRE_TOKENIZERS: dict[str, dict[str, Any]] = {
    "gpt-2": _byte_level(use_regex=True),
    "smollm": {
        "type": "Sequence",
        "pretokenizers": [{"type": "Digits", "individual_digits": True}, _byte_level(use_regex=True)],
    },
    "llama-bpe": _words_with_digit_groups(r"\p{N}{1,3}"),
    "qwen2": _words_with_digit_groups(r"\p{N}"),
}
_PRE_TOKENIZERS["default"] = _PRE_TOKENIZERS["gpt-2"]


def byte_level_tokenizer_json(
    pre_tokenizer: str, vocab: Mapping[str, int], merges: Sequence[str], added_tokens: Iterable[AddedToken]
) -> bytes:
    """A byte-level BPE (Radford et al. 2019). `pre_tokenizer` is GGUF's name for how text is cut into words.

    Raises UnsupportedModelError for a name that is not known: a guess would tokenize almost rightly.
    """
    if pre_tokenizer not in _PRE_TOKENIZERS:
        raise UnsupportedModelError(
            f"The tokenizer splits words in the way named {pre_tokenizer!r} (tokenizer.ggml.pre);"
            f" supported are {', '.join(sorted(_PRE_TOKENIZERS))}."
        )
    return _tokenizer_json(
        added_tokens=added_tokens,
        normalizer={"type": "NFC"} if pre_tokenizer == "qwen2" else None,
        pre_tokenizer=_PRE_TOKENIZERS[pre_tokenizer],
        decoder={"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        vocab=vocab,
        merges=merges,
        # Llama 3 takes a word that is in the vocabulary whole, even where no merges lead to it.
        ignore_merges=pre_tokenizer == "llama-bpe",
    )


def sentencepiece_tokenizer_json(
    pieces: Sequence[str],
    merge_scores: Mapping[int, float],
    added_tokens: Iterable[AddedToken],
    *,
    unk_token: str | None,
    add_space_prefix: bool,
) -> bytes:
    """A SentencePiece BPE with byte fallback (Kudo and Richardson 2018).

    `merge_scores` holds the score of every piece that merging may build; see `merges_from_scores`.
    """
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": WORD_START}
    prepend = {"type": "Prepend", "prepend": WORD_START}
    restore: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": WORD_START}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if add_space_prefix:
        restore.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return _tokenizer_json(
        added_tokens=added_tokens,
        normalizer={"type": "Sequence", "normalizers": [prepend, replace]} if add_space_prefix else replace,
        pre_tokenizer=None,
        decoder={"type": "Sequence", "decoders": restore},
        vocab={piece: token_id for token_id, piece in enumerate(pieces)},
        merges=merges_from_scores(pieces, merge_scores),
        unk_token=unk_token,
        fuse_unk=True,
        byte_fallback=True,
    )


def merges_from_scores(pieces: Sequence[str], scores: Mapping[int, float]) -> list[list[str]]:
    """The merge list that makes a BPE choose as SentencePiece does.

    SentencePiece joins the two neighbours whose joined piece scores highest. So every way to cut a piece into two
    pieces is a merge, and merges go by the score of what they build. Where one piece can be cut in several ways,
    the cut with the longest left half goes first, which is what growing it from the left comes to.
    """
    known = set(pieces)
    ranked: list[tuple[float, int, int, str, str]] = []
    for token_id, score in scores.items():
        piece = pieces[token_id]
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in known and right in known:
                ranked.append((score, cut, len(right), left, right))
    ranked.sort(key=lambda merge: merge[:3], reverse=True)
    return [[left, right] for *_, left, right in ranked]


def _tokenizer_json(
    *,
    added_tokens: Iterable[AddedToken],
    normalizer: Mapping[str, Any] | None,
    pre_tokenizer: Mapping[str, Any] | None,
    decoder: Mapping[str, Any],
    vocab: Mapping[str, int],
    merges: Sequence[str] | Sequence[Sequence[str]],
    unk_token: str | None = None,
    fuse_unk: bool = False,
    byte_fallback: bool = False,
    ignore_merges: bool = False,
) -> bytes:
    """In the order of the tokenizers library, without its white space, which would take twenty times as long to write."""
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": list(added_tokens),
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": decoder,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": unk_token,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": fuse_unk,
            "byte_fallback": byte_fallback,
            "ignore_merges": ignore_merges,
            "vocab": vocab,
            "merges": merges,
        },
    }
    return msgspec.json.encode(tokenizer)
