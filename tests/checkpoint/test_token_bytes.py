"""A vocabulary read straight from tokenizer.json, against the tokenizer that the library makes of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
import tokenizers
from tests.engine.small_tokenizers import byte_level_json, sentencepiece_json, tokenizer_files

from quire.checkpoint.token_bytes import read_vocabulary
from quire.engine.tokenizer import Tokenizer
from quire.errors import UnsupportedModelError

ADDED = {"special": False, "lstrip": False, "rstrip": False, "normalized": False, "single_word": False}


def with_added_token(tokenizer_json: dict[str, Any], text: str) -> dict[str, Any]:
    num_tokens = Tokenizer(tokenizer_files(tokenizer_json)).vocab_size
    added = [*tokenizer_json["added_tokens"], {"id": num_tokens, "content": text} | ADDED]
    return tokenizer_json | {"added_tokens": added}


@pytest.mark.parametrize("kind", ["byte-level", "sentencepiece"])
def test_tokens_are_the_bytes_that_the_tokenizer_decodes_them_to(kind: str) -> None:
    plain = byte_level_json() if kind == "byte-level" else sentencepiece_json(False)
    content = with_added_token(plain, "<td>▁é")
    tokenizer = Tokenizer(tokenizer_files(content))
    vocabulary = read_vocabulary(json.dumps(content).encode())
    assert vocabulary.tokens == [tokenizer.token_bytes(token_id) for token_id in range(tokenizer.vocab_size)]
    assert set(vocabulary.special_ids) == tokenizer.special_token_ids


def test_a_unigram_vocabulary_is_a_list() -> None:
    model = tokenizers.models.Unigram([("<unk>", 0.0), ("▁a", -1.0), ("bc", -2.0)], 0, False)
    made = tokenizers.Tokenizer(model)
    made.decoder = tokenizers.decoders.Metaspace()
    assert read_vocabulary(made.to_str().encode()).tokens == [b"<unk>", b" a", b"bc"]


def test_a_decoder_that_is_not_one_of_bytes_is_refused() -> None:
    changed = byte_level_json() | {"decoder": {"type": "CTC"}}
    with pytest.raises(UnsupportedModelError, match="CTC"):
        read_vocabulary(json.dumps(changed).encode())


def test_ids_far_apart_are_refused_before_they_take_memory() -> None:
    content = byte_level_json()
    content["added_tokens"] = [*content["added_tokens"], {"id": 60_000, "content": "near"} | ADDED]
    assert len(read_vocabulary(json.dumps(content).encode()).tokens) == 60_001
    content["added_tokens"][-1]["id"] = 2**40
    with pytest.raises(UnsupportedModelError, match="ids up to 1099511627776"):
        read_vocabulary(json.dumps(content).encode())
