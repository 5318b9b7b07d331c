"""A grammar tried on text, with a vocabulary of single bytes and a few special tokens."""

from __future__ import annotations

from collections.abc import Sequence

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

FIRST_SPECIAL_ID = 256


class _ByteVocabulary:
    bos_token_id = None

    def __init__(self, special_tokens: Sequence[str]) -> None:
        texts = [*special_tokens, "<|end|>"]
        self.tokens = [bytes([byte]) for byte in range(256)] + [text.encode() for text in texts]
        self.special_token_ids = list(range(256, len(self.tokens)))
        self.eos_token_id = len(self.tokens) - 1

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text if isinstance(text, bytes) else text.encode())


def accepts(lark: str, text: str, special_tokens: Sequence[str] = (), *, spelled: bool = False) -> bool:
    """Whether the grammar allows exactly this text, its special tokens as such or `spelled` in bytes."""
    vocabulary = _ByteVocabulary(special_tokens)
    tokenizer = LLTokenizer(TokenizerWrapper(vocabulary), n_vocab=len(vocabulary.tokens))
    grammar = LLMatcher.grammar_from_lark(lark)
    is_error, messages = LLMatcher.validate_grammar_with_warnings(grammar, tokenizer)
    assert not is_error, messages
    matcher = LLMatcher(tokenizer, grammar, log_level=0)
    ids = _encode(text, () if spelled else special_tokens)
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


def is_valid(lark: str) -> bool:
    is_error, _ = LLMatcher.validate_grammar_with_warnings(LLMatcher.grammar_from_lark(lark))
    return not is_error


def _encode(text: str, special_tokens: Sequence[str]) -> list[int]:
    ids: list[int] = []
    while text:
        special = next((token for token in special_tokens if text.startswith(token)), None)
        if special is None:
            ids += text[0].encode()
            text = text[1:]
        else:
            ids.append(FIRST_SPECIAL_ID + list(special_tokens).index(special))
            text = text[len(special) :]
    return ids
