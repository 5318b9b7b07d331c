"""The tokenizer that grammars are followed with, against llguidance's own reading of the same file."""

from __future__ import annotations

import json

import llguidance
import pytest
from tests.engine.small_tokenizers import byte_level_json, sentencepiece_json, tokenizer_files

from quire.checkpoint.tokenizer_files import TokenizerFiles
from quire.sampling.grammar_compiler import grammar_tokenizer

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


def test_an_added_token_that_is_not_special_is_text() -> None:
    tokenizer = grammar_tokenizer(KINDS["byte-level"], VOCAB_SIZE)
    added = KINDS["byte-level"].added_tokens()
    special = {text: tokenizer.is_special_token(token_id) for token_id, text in added.items()}
    assert special == {"<s>": True, "</s>": True, "<tool é>": False}
