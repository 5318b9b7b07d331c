"""Encoding and decoding agree with the tokenizers library, and what does not fit the model is refused."""

from __future__ import annotations

import os
import platform
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from small_tokenizers import KINDS, byte_level_json, sentencepiece_json, small_tokenizer, tokenizer_files
from tests.tiny_models import BERT_VOCAB_SIZE, save_word_pieces

from quire.checkpoint.tokenizer_files import read_tokenizer_files
from quire.engine.tokenizer import HUGE_TEXT, LONG_TEXT, Tokenizer
from quire.errors import CheckpointError, InvalidRequestError, UnsupportedModelError

texts = st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="▁"), max_size=30)


@pytest.mark.parametrize("kind", KINDS)
@given(text=texts)
def test_any_text_comes_back(kind: str, text: str) -> None:
    tokenizer = small_tokenizer(kind)
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("add_special_tokens", [False, True])
def test_long_texts_have_the_ids_that_short_ones_have(
    kind: str, add_special_tokens: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = small_tokenizer(kind)
    text = "a bc é\n" * LONG_TEXT
    ids = tokenizer.encode(text, add_special_tokens)
    monkeypatch.setattr("quire.engine.tokenizer.LONG_TEXT", len(text))
    assert ids == tokenizer.encode(text, add_special_tokens)


@pytest.mark.parametrize("kind", KINDS)
def test_many_texts_at_once(kind: str) -> None:
    tokenizer = small_tokenizer(kind)
    many = ["a", "", " bc", "é\n" * 9]
    assert tokenizer.encode_plain(many) == [tokenizer.encode(text, add_special_tokens=False) for text in many]
    with pytest.raises(InvalidRequestError, match="surrogate"):
        tokenizer.encode_plain(["a", "\ud800"])


def test_other_threads_run_while_a_long_text_is_encoded() -> None:
    tokenizer = small_tokenizer(KINDS[0])
    begun, done, num_turns = threading.Event(), threading.Event(), [0]

    def take_turns() -> None:
        begun.wait()
        while not done.is_set():
            time.sleep(0.001)
            num_turns[0] += 1

    beside = threading.Thread(target=take_turns)
    beside.start()
    begun.set()
    tokenizer.encode("a bc é\n" * 300_000)
    turns = num_turns[0]
    done.set()
    beside.join()
    assert turns > 5


@given(ids=st.lists(st.integers(0, 270), max_size=20), skip=st.booleans())
def test_any_bytes_decode_as_the_library_decodes_them(ids: list[int], skip: bool) -> None:
    library = tokenizers.Tokenizer.from_buffer(tokenizer_files(byte_level_json()).tokenizer_json)
    ids = [token_id for token_id in ids if token_id != 265]  # the library takes é in an added token for a byte
    assert small_tokenizer("byte-level").decode(ids, skip) == library.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("prefix", [True, False])
@given(ids=st.lists(st.integers(259, 274) | st.integers(0, 2), max_size=20), skip=st.booleans())
def test_pieces_decode_as_the_library_decodes_them(prefix: bool, ids: list[int], skip: bool) -> None:
    library = tokenizers.Tokenizer.from_buffer(tokenizer_files(sentencepiece_json(prefix)).tokenizer_json)
    tokenizer = small_tokenizer("sentencepiece-prefix" if prefix else "sentencepiece")
    assert tokenizer.decode(ids, skip) == library.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("kind", KINDS)
def test_ids_that_are_no_token_are_nothing(kind: str) -> None:
    tokenizer = small_tokenizer(kind)
    assert tokenizer.decode([-1, 999, 2**31, 2**63, 10**30]) == ""
    assert tokenizer.decode_token(2**40) == ""


def test_one_token_alone() -> None:
    tokenizer = small_tokenizer("byte-level")
    assert [tokenizer.decode_token(i) for i in (258, 263, 265, 0xE2)] == [" the", "<s>", "<tool é>", "\ufffd"]
    assert small_tokenizer("sentencepiece").decode_token(3 + 0x41) == "A"


@pytest.mark.parametrize("kind", KINDS)
def test_bos_goes_first_once(kind: str) -> None:
    tokenizer = small_tokenizer(kind)
    bos = tokenizer.bos_token_id
    plain = tokenizer.encode("the", add_special_tokens=False)
    assert bos is not None
    assert tokenizer.encode("the") == [bos, *plain]
    assert tokenizer.encode("<s>the") == [bos, *tokenizer.encode("<s>the", add_special_tokens=False)[1:]]
    assert tokenizer.encode("<s>the").count(bos) == 1


def with_bos_post_processor() -> dict[str, Any]:
    content = byte_level_json()
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [263], "tokens": ["<s>"]}},
    }
    return content


def test_a_post_processor_decides_unless_the_config_does() -> None:
    def ids(add_bos: bool | None, text: str) -> list[int]:
        return Tokenizer(tokenizer_files(with_bos_post_processor(), add_bos=add_bos)).encode(text)

    assert ids(None, "a") == ids(True, "a") == [263, ord("a")]
    assert ids(None, "<s>a") == ids(True, "<s>a") == [263, ord("a")]
    assert ids(False, "a") == [ord("a")]
    without = Tokenizer(tokenizer_files(byte_level_json(), add_bos=None))
    assert without.encode("<s><s>a") == [263, 263, ord("a")]


def test_ends_of_text_come_from_every_place() -> None:
    tokenizer = Tokenizer(tokenizer_files(byte_level_json(), eos_token_ids=(7, 264)))
    assert tokenizer.eos_token_id == 264
    assert tokenizer.eos_token_ids == (264, 7)
    assert {263, 264} <= tokenizer.special_token_ids
    assert 265 not in tokenizer.special_token_ids


def test_an_end_of_text_beyond_the_model_ends_nothing() -> None:
    files = tokenizer_files(byte_level_json(), eos_token_ids=(7, 264), model_vocab_size=264)
    assert Tokenizer(files).eos_token_ids == files.end_token_ids() == (7,)


def test_a_vocabulary_larger_than_the_model_is_refused() -> None:
    with pytest.raises(CheckpointError, match="263 tokens, but the model's embedding has only 262 rows"):
        Tokenizer(tokenizer_files(byte_level_json(), model_vocab_size=262))


def test_an_added_token_beyond_the_model_is_refused_where_a_text_holds_it() -> None:
    tokenizer = Tokenizer(tokenizer_files(byte_level_json(), model_vocab_size=265))
    assert tokenizer.encode("plain text </s>")
    with pytest.raises(InvalidRequestError, match=r"'<tool é>' with id 265, but .* ends at id 264"):
        tokenizer.encode("x <tool é>")


def test_truncation_and_padding_in_the_file_are_not_applied() -> None:
    content = byte_level_json()
    content["truncation"] = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    content["padding"] = {
        "strategy": {"Fixed": 50},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "!",
    }
    assert len(Tokenizer(tokenizer_files(content)).encode("123456789")) == 10


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff", b'{"model": {"type": "Magic"}}'])
def test_a_damaged_file_is_named(content: bytes) -> None:
    import dataclasses

    files = dataclasses.replace(tokenizer_files({}), tokenizer_json=content, source="some/model")
    with pytest.raises(CheckpointError, match="some/model"):
        Tokenizer(files)


def test_a_text_that_the_library_refuses_is_refused() -> None:
    """Here, for the unknown token is no token."""
    content = {"version": "1.0", "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "<unk>"}}
    tokenizer = Tokenizer(tokenizer_files(content))
    assert tokenizer.encode("a") == [0]
    with pytest.raises(InvalidRequestError, match=r"cannot encode the text: .*Missing \[UNK\]") as caught:
        tokenizer.encode("b")
    assert caught.value.field == "prompt"


def test_a_prefix_longer_than_what_merges_make_is_named() -> None:
    """The library panics at it."""
    content = byte_level_json()
    content["model"] |= {"merges": [["a", "b"]], "continuing_subword_prefix": "##"}
    with pytest.raises(CheckpointError, match="could not be read"):
        Tokenizer(tokenizer_files(content))


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupted_construction_is_no_damage(error: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: bytes) -> None:
        raise error

    monkeypatch.setattr("quire.engine.tokenizer.tokenizers.Tokenizer", SimpleNamespace(from_buffer=interrupt))
    with pytest.raises(error):
        Tokenizer(tokenizer_files({}))


def test_what_the_library_panics_at_is_named() -> None:
    content = byte_level_json()
    content["pre_tokenizer"] = {"type": "FixedLength", "length": 0}
    tokenizer = Tokenizer(tokenizer_files(content))
    for encode in (tokenizer.encode, lambda text: tokenizer.encode_plain([text])):
        with pytest.raises(InvalidRequestError, match="tokenizer cannot encode the text"):
            encode("some text")
    content["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}
    with pytest.raises(CheckpointError, match="could not be read"):
        Tokenizer(tokenizer_files(content))


def test_a_decoder_that_is_no_concatenation_is_refused() -> None:
    content = byte_level_json()
    content["decoder"] = {"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": True}
    with pytest.raises(UnsupportedModelError, match="CTC"):
        Tokenizer(tokenizer_files(content))


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="surrogate pair at character 1"):
        small_tokenizer("byte-level").encode("a\ud83d")


@pytest.fixture(scope="module")
def word_pieces(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    directory: Path = tmp_path_factory.mktemp("word-pieces")
    save_word_pieces(directory)
    return Tokenizer(read_tokenizer_files(directory, BERT_VOCAB_SIZE, ()))


@pytest.mark.parametrize("text", ["a cat, a dog.", "Cat? CAT!", "xyz", "caté 東京", "", "[SEP] a"])
def test_word_pieces_are_decoded_as_the_library_does(text: str, word_pieces: Tokenizer) -> None:
    ids = word_pieces.encode(text)
    assert (ids[0], ids[-1]) == (2, 3)
    for skip in (True, False):
        assert word_pieces.decode(ids, skip) == word_pieces._backend.decode(ids, skip_special_tokens=skip)


def test_what_is_left_of_a_truncated_text(word_pieces: Tokenizer) -> None:
    ids = word_pieces.encode("a b c d")
    assert ids == [2, 4, 5, 6, 7, 3]
    assert word_pieces.truncate(ids, 6) == ids
    assert word_pieces.truncate(ids, 4) == [2, 4, 5, 3]
    assert word_pieces.truncate(ids, 1) == [2]
    assert word_pieces.truncate([4, 5, 6], 2) == [4, 5]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators keep their own counsel")
def test_what_encoding_a_huge_text_took_is_given_back() -> None:
    tokenizer, text = small_tokenizer(KINDS[0]), "a bc " * HUGE_TEXT

    def resident_mib() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20

    before = resident_mib()
    assert tokenizer.encode(text)
    assert resident_mib() - before < 200
