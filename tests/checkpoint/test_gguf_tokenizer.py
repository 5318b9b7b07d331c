"""Tokenizers rebuilt from GGUF metadata encode as the originals do."""

from __future__ import annotations

import hashlib
import io
import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from quire.checkpoint.checkpoint import open_checkpoint
from quire.checkpoint.gguf.metadata import TokenType
from quire.checkpoint.gguf_tokenizer import read_gguf_tokenizer
from quire.checkpoint.tokenizer_json import byte_level_tokenizer_json
from quire.errors import CheckpointError, QuireError, UnsupportedModelError

SENTENCES = [
    "The quick brown fox jumps over the lazy dog, again and again, and then the dog jumps over the fox.",
    "In the beginning there was nothing; then there were tokens, and the tokens were with the model.",
    "Les naïfs ægithales hâtifs pondant à Noël où il gèle sont sûrs d'être déçus.",
    "def add(a, b):  return a + b   # adds  two   numbers",
    "日本語のテキストと日本語の単語、日本語の文章。",
] * 20


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_CACHE", str(tmp_path))


def train_sentencepiece(**options: Any) -> sentencepiece.SentencePieceProcessor:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES),
        model_writer=model,
        model_type="bpe",
        vocab_size=520,
        byte_fallback=True,
        character_coverage=0.98,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        user_defined_symbols=["<table>", "\t\t"],
        minloglevel=2,
        **options,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def sentencepiece_metadata(processor: sentencepiece.SentencePieceProcessor) -> dict[str, Any]:
    ids = range(processor.get_piece_size())

    def token_type(token_id: int) -> TokenType:
        if processor.is_byte(token_id):
            return TokenType.BYTE
        if processor.is_unknown(token_id):
            return TokenType.UNKNOWN
        if processor.is_control(token_id):
            return TokenType.CONTROL
        literal = processor.id_to_piece(token_id) in ("<table>", "\t\t")
        return TokenType.USER_DEFINED if literal else TokenType.NORMAL

    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [processor.id_to_piece(i) for i in ids],
        "tokenizer.ggml.scores": [processor.get_score(i) for i in ids],
        "tokenizer.ggml.token_type": [int(token_type(i)) for i in ids],
        "tokenizer.ggml.bos_token_id": processor.bos_id(),
        "tokenizer.ggml.eos_token_id": processor.eos_id(),
        "tokenizer.ggml.unknown_token_id": processor.unk_id(),
    }


def rebuild(metadata: Mapping[str, Any]) -> Tokenizer:
    files = read_gguf_tokenizer(metadata, "test.gguf", 10**6, ())
    return Tokenizer.from_buffer(files.tokenizer_json)


@pytest.mark.parametrize("add_space_prefix", [True, False])
def test_sentencepiece_is_matched_id_for_id(add_space_prefix: bool) -> None:
    processor = train_sentencepiece(add_dummy_prefix=add_space_prefix)
    metadata = sentencepiece_metadata(processor) | {"tokenizer.ggml.add_space_prefix": add_space_prefix}
    tokenizer = rebuild(metadata)
    pieces = [processor.id_to_piece(i).replace("▁", " ") for i in range(processor.get_piece_size())]
    # With a space prefix, the text after a literal token gets one too, as in Llama 2's published tokenizer.json.
    literal = [] if add_space_prefix else ["\t\t", "<table>"]
    learned = [piece for piece in pieces if not piece.startswith("<") and "\t\t" not in piece]
    randomness = random.Random(0)
    for _ in range(500):
        text = "".join(randomness.choices([*learned, *literal, "é", "中", "😀", "   ", "\n", "zq"], k=12))
        assert tokenizer.encode(text, add_special_tokens=False).ids == processor.encode(text), repr(text)


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\x00▁"), max_size=40))
def test_sentencepiece_round_trips_any_text(text: str) -> None:
    tokenizer = SENTENCEPIECE_TOKENIZER
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


SENTENCEPIECE_PROCESSOR = train_sentencepiece(add_dummy_prefix=False)
SENTENCEPIECE_TOKENIZER = Tokenizer.from_buffer(
    read_gguf_tokenizer(
        sentencepiece_metadata(SENTENCEPIECE_PROCESSOR) | {"tokenizer.ggml.add_space_prefix": False},
        "test.gguf",
        10**6,
        (),
    ).tokenizer_json
)


def words(pre_tokenizer: str, text: str) -> list[str]:
    """How a text is cut before merging, in plain characters."""
    vocab = {char: i for i, char in enumerate(map(chr, range(0x21, 0x180)))}
    tokenizer = Tokenizer.from_buffer(byte_level_tokenizer_json(pre_tokenizer, vocab, [], []))
    assert tokenizer.pre_tokenizer is not None
    return [word.replace("Ġ", " ").replace("Ċ", "\n") for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)]


@pytest.mark.parametrize(
    ("pre_tokenizer", "expected"),
    [
        ("gpt-2", ["I", "'ll", " pay", " 12345", " $", "9", "!", "\n\n", " ok"]),
        ("default", ["I", "'ll", " pay", " 12345", " $", "9", "!", "\n\n", " ok"]),
        ("smollm", ["I", "'ll", " pay", " ", "1", "2", "3", "4", "5", " $", "9", "!", "\n\n", " ok"]),
        ("llama-bpe", ["I", "'ll", " pay", " ", "123", "45", " $", "9", "!\n\n", " ok"]),
        ("qwen2", ["I", "'ll", " pay", " ", "1", "2", "3", "4", "5", " $", "9", "!\n\n", " ok"]),
    ],
)
def test_each_way_to_cut_words(pre_tokenizer: str, expected: list[str]) -> None:
    assert words(pre_tokenizer, "I'll pay 12345 $9!\n\n ok") == expected


def test_an_unknown_way_to_cut_words_is_refused() -> None:
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "tekken",
        "tokenizer.ggml.tokens": ["a"],
        "tokenizer.ggml.merges": [],
    }
    with pytest.raises(UnsupportedModelError, match=r"'tekken'.*llama-bpe"):
        read_gguf_tokenizer(metadata, "test.gguf", 1, ())


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"tokenizer.ggml.model": "rwkv"}, UnsupportedModelError, "rwkv"),
        ({"tokenizer.ggml.scores": [0.0]}, CheckpointError, r"scores has 1 entries for 520 tokens"),
        ({"tokenizer.ggml.token_type": [1]}, CheckpointError, r"token_type has 1 entries"),
        ({"tokenizer.ggml.bos_token_id": 520}, CheckpointError, r"bos_token_id is 520, but .* from 0 to 519"),
        ({"tokenizer.ggml.precompiled_charsmap": [1]}, UnsupportedModelError, "precompiled_charsmap"),
    ],
)
def test_damage_is_named(change: dict[str, Any], error: type[Exception], message: str) -> None:
    metadata = sentencepiece_metadata(SENTENCEPIECE_PROCESSOR) | change
    with pytest.raises(error, match=message):
        read_gguf_tokenizer(metadata, "test.gguf", 520, ())
    missing = {key: value for key, value in metadata.items() if key != "tokenizer.ggml.tokens"}
    with pytest.raises(CheckpointError, match=r"no tokenizer\.ggml\.tokens"):
        read_gguf_tokenizer(missing, "test.gguf", 520, ())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *((f"{name}_token_id", value) for name in ("unknown", "bos") for value in ("x", "1", [1], -1, 1.5, True)),
        *((f"{name}_token_id", -1) for name in ("eos", "padding")),
        *((name, value) for name in ("tokens", "merges") for value in (5, "ab", [1] * 520, [[]] * 520)),
        *((name, value) for name in ("token_type", "scores") for value in (5, ["1"] * 520, [[1]] * 520, [True] * 520)),
        ("token_type", [1.0] * 520),
        ("model", ["llama"]),
        ("pre", 1),
        ("add_bos_token", "false"),
        ("add_space_prefix", 0),
        ("chat_template", 1),
        ("chat_template.rag", [""]),
    ],
)
def test_metadata_of_a_wrong_type_are_named(key: str, value: object) -> None:
    key = f"tokenizer.{key}" if key.startswith("chat") else f"tokenizer.ggml.{key}"
    kind = "gpt2" if key.endswith("merges") else "llama"
    metadata = sentencepiece_metadata(SENTENCEPIECE_PROCESSOR) | {"tokenizer.ggml.model": kind, key: value}
    with pytest.raises(CheckpointError, match=rf"test\.gguf: {key} is .{{1,200}}, but it must be") as caught:
        read_gguf_tokenizer(metadata, "test.gguf", 520, ())
    assert len(str(caught.value)) < 400


def test_chat_templates_have_their_names() -> None:
    templates = {"tokenizer.chat_template": "d", "tokenizer.chat_template.rag": "r"}
    metadata = sentencepiece_metadata(SENTENCEPIECE_PROCESSOR) | templates
    assert read_gguf_tokenizer(metadata, "test.gguf", 520, ()).chat_templates == {"default": "d", "rag": "r"}


def test_whether_bos_goes_first() -> None:
    spm = sentencepiece_metadata(SENTENCEPIECE_PROCESSOR)
    bpe = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a"], "tokenizer.ggml.merges": []}

    def adds_bos(metadata: Mapping[str, Any]) -> bool | None:
        return read_gguf_tokenizer(metadata, "test.gguf", 520, ()).add_bos

    assert adds_bos(spm) is True
    assert adds_bos(spm | {"tokenizer.ggml.add_bos_token": False}) is False
    assert adds_bos(bpe) is False
    assert adds_bos(bpe | {"tokenizer.ggml.pre": "llama-bpe"}) is True


def test_the_rebuilt_tokenizer_is_cached_and_an_unwritable_cache_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = sentencepiece_metadata(SENTENCEPIECE_PROCESSOR)
    first = read_gguf_tokenizer(metadata, "test.gguf", 520, ()).tokenizer_json
    (cached,) = (tmp_path / "tokenizers").iterdir()
    assert cached.read_bytes().endswith(first)
    for damaged in (b"", cached.read_bytes()[:-1], b"{}"):
        cached.write_bytes(damaged)
        assert read_gguf_tokenizer(metadata, "test.gguf", 520, ()).tokenizer_json == first
        assert cached.read_bytes().endswith(first), "it is made again"
    other = read_gguf_tokenizer(metadata | {"tokenizer.ggml.add_space_prefix": False}, "test.gguf", 520, ())
    assert other.tokenizer_json != first
    (tmp_path / "file").touch()
    monkeypatch.setenv("QUIRE_CACHE", str(tmp_path / "file"))
    assert read_gguf_tokenizer(metadata, "test.gguf", 520, ()).tokenizer_json == first


@pytest.mark.parametrize("refuses", ["os.replace", "quire.checkpoint.gguf_tokenizer.cache_dir"])
def test_a_cache_that_takes_nothing_leaves_nothing_behind(
    refuses: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = sentencepiece_metadata(SENTENCEPIECE_PROCESSOR)

    def refuse(*_: object) -> None:
        raise OSError("full") if refuses == "os.replace" else QuireError("no home")

    monkeypatch.setattr(refuses, refuse)
    assert read_gguf_tokenizer(metadata, "test.gguf", 520, ()).tokenizer_json
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.real
def test_smollm2_is_rebuilt_as_it_was(smollm2: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QUIRE_CACHE")
    tokenizer = json.loads(open_checkpoint(smollm2).tokenizer.tokenizer_json)
    # The white space of the original file.
    original = json.dumps(tokenizer, indent=2, ensure_ascii=False).encode()
    digest = "9ca9acddb6525a194ec8ac7a87f24fbba7232a9a15ffa1af0c1224fcd888e47c"
    assert (len(original), hashlib.sha256(original).hexdigest()) == (2_104_556, digest)


@pytest.mark.real
def test_the_built_in_models_end_texts_and_turns(smollm2: str, gemma3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QUIRE_CACHE")
    ends = [open_checkpoint(name).tokenizer.end_token_ids() for name in (smollm2, gemma3)]
    assert ends == [(2, 0), (1, 106)]


@pytest.mark.real
def test_gemma3_encodes_as_its_original_tokenizer(gemma3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ids in the file are those of the tokenizer.json published with the model."""
    monkeypatch.delenv("QUIRE_CACHE")
    tokenizer = Tokenizer.from_buffer(open_checkpoint(gemma3).tokenizer.tokenizer_json)
    cases = json.loads((Path(__file__).parent / "gemma3_encodings.json").read_text())
    for case in cases:
        assert tokenizer.encode(case["text"], add_special_tokens=False).ids == case["ids"], repr(case["text"])
