"""The tokenizer that grammars are followed with, against llguidance's own reading of the same file."""

from __future__ import annotations

import json

import llguidance
import pytest
from tests.engine.small_tokenizers import byte_level_json, sentencepiece_json, tokenizer_files

from quire.checkpoint.tokenizer_files import TokenizerFiles
from quire.engine.tokenizer import Tokenizer
from quire.sampling.grammar_compiler import GrammarCompiler, grammar_tokenizer

VOCAB_SIZE = 300
TEXTS = ["then", "the END", " the", "日本x", "é\n", "", "{}"]

KINDS: dict[str, TokenizerFiles] = {
    "byte-level": tokenizer_files(byte_level_json()),
    "sentencepiece": tokenizer_files(sentencepiece_json(False)),
    "sentencepiece-prefix": tokenizer_files(sentencepiece_json(True)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_and_forced_texts_are_those_of_the_tokenizer(kind: str) -> None:
    files = KINDS[kind]
    ours = grammar_tokenizer(files, VOCAB_SIZE)
    own = llguidance.LLTokenizer(
        files.tokenizer_json.decode(), n_vocab=VOCAB_SIZE, eos_token=list(files.end_token_ids())
    )
    assert ours.vocab_size == own.vocab_size == VOCAB_SIZE
    assert ours.eos_tokens == own.eos_tokens
    assert [ours.tokenize_str(text) for text in TEXTS] == [own.tokenize_str(text) for text in TEXTS]
    num_tokens = 1 + max(json.loads(files.tokenizer_json)["model"]["vocab"].values())
    assert all(ours.decode_bytes([i]) == own.decode_bytes([i]) for i in range(num_tokens))


def allowed_tokens(matcher: llguidance.LLMatcher) -> list[int]:
    return [8 * i + bit for i, byte in enumerate(matcher.compute_bitmask()) for bit in range(8) if byte >> bit & 1]


@pytest.mark.parametrize("kind", KINDS)
def test_of_a_long_text_that_is_forced_little_is_tokenized_at_each_token(kind: str) -> None:
    """All of it took a second for 500,000 characters, at each of its tokens, in which no row of the batch went on."""
    text = "then the END, 日本x é\n" * 400
    whole = Tokenizer(KINDS[kind]).encode(text, add_special_tokens=False)
    tokenizer = grammar_tokenizer(KINDS[kind], VOCAB_SIZE)
    beginning = tokenizer.tokenize_str(text)
    assert 8 <= len(beginning) < 200 < len(whole)
    matcher = GrammarCompiler(KINDS[kind], VOCAB_SIZE).compile(llguidance.grammar_from("choice", json.dumps([text])))
    written: list[int] = []
    while not matcher.is_stopped():
        allowed = allowed_tokens(matcher)
        assert len(allowed) == 1
        matcher.consume_tokens(allowed)
        written += allowed
    assert tokenizer.decode_bytes(written).decode() == text


def test_an_added_token_that_is_not_special_is_text() -> None:
    tokenizer = grammar_tokenizer(KINDS["byte-level"], VOCAB_SIZE)
    added = KINDS["byte-level"].added_tokens()
    special = {text: tokenizer.is_special_token(token_id) for token_id, text in added.items()}
    assert special == {"<s>": True, "</s>": True, "<tool é>": False}
