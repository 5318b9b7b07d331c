"""What is read of a tokenizer in a model directory."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from quire.checkpoint.tokenizer_files import TokenizerFiles, read_tokenizer_files
from quire.errors import CheckpointError


def read(directory: Path, **files: Any) -> TokenizerFiles:
    (directory / "tokenizer.json").write_text("{}")
    for name, content in files.items():
        (directory / f"{name}.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return read_tokenizer_files(directory, 10, (3,))


def test_special_tokens_are_texts_or_serialized_objects(tmp_path: Path) -> None:
    config = {"bos_token": {"content": "<s>", "lstrip": False}, "eos_token": "</s>", "pad_token": None, "add_token": 1}
    older = {"eos_token": "old", "unk_token": "<unk>", "pad_token": "<pad>"}
    files = read(tmp_path, tokenizer_config=config, special_tokens_map=older)
    assert files.special_tokens == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    assert files.eos_token_ids == (3,)
    assert files.add_bos is None


def test_whether_bos_goes_first_is_kept_where_it_is_said(tmp_path: Path) -> None:
    assert read(tmp_path, tokenizer_config={"add_bos_token": True}).add_bos is True
    assert read(tmp_path, tokenizer_config={"add_bos_token": False}).add_bos is False


def test_the_newest_place_of_a_chat_template_wins(tmp_path: Path) -> None:
    assert read(tmp_path).chat_templates == {}
    assert read(tmp_path, tokenizer_config={"chat_template": "config"}).chat_templates == {"default": "config"}
    assert read(tmp_path, chat_template={"chat_template": "json"}).chat_templates == {"default": "json"}
    (tmp_path / "chat_template.jinja").write_text("jinja")
    assert read(tmp_path).chat_templates == {"default": "jinja"}


def test_templates_for_special_uses_keep_their_names(tmp_path: Path) -> None:
    templates = [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]
    files = read(tmp_path, tokenizer_config={"chat_template": templates})
    assert files.chat_templates == {"default": "d", "tool_use": "t"}


@pytest.mark.parametrize("content", ["", "[1]", "{", "\udcff".encode("utf-8", "surrogateescape").decode("latin-1")])
def test_damaged_json_names_the_file(tmp_path: Path, content: str) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json"):
        read(tmp_path, tokenizer_config=content)


@pytest.mark.parametrize("name", ["tokenizer_config", "special_tokens_map"])
def test_a_special_token_that_is_no_text_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(CheckpointError, match="half of a surrogate pair in its bos_token"):
        read(tmp_path, **{name: {"bos_token": {"content": "\ud800"}}})


@pytest.mark.parametrize("added", [{}, [{"id": "x", "content": "y"}], [{"content": "y"}]])
def test_added_tokens_of_other_types_are_damage(tmp_path: Path, added: Any) -> None:
    files = replace(read(tmp_path), tokenizer_json=json.dumps({"added_tokens": added}).encode())
    with pytest.raises(CheckpointError, match=r"could not be read: .*fetch the model again"):
        files.end_token_ids()


@pytest.mark.parametrize("templates", [[{"name": "default"}], ["x"], [{"name": 1, "template": "t"}]])
def test_a_damaged_list_of_templates_names_the_file(tmp_path: Path, templates: list[Any]) -> None:
    with pytest.raises(CheckpointError, match="chat_template"):
        read(tmp_path, tokenizer_config={"chat_template": templates})


def test_a_missing_tokenizer_says_how_to_make_one(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").touch()
    with pytest.raises(CheckpointError, match=r"tokenizer\.model.*save_pretrained"):
        read_tokenizer_files(tmp_path, 10, ())


@pytest.mark.parametrize("name", ["tokenizer.json", "chat_template.jinja", "merges.txt", "vocab.json"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    """A directory in its place is refused even to root, who runs the tests too."""
    (tmp_path / "vocab.json").write_text("{}")
    (tmp_path / "merges.txt").touch()
    (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / name).mkdir()
    with pytest.raises(CheckpointError, match=rf"{name} .*[Ii]s a directory.*fetch the file again"):
        read_tokenizer_files(tmp_path, 10, ())


@pytest.mark.parametrize(
    "name",
    [
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "chat_template.jinja",
        "chat_template.json",
        "vocab.json",
        "merges.txt",
        "added_tokens.json",
    ],
)
def test_a_pipe_is_not_waited_for(tmp_path: Path, name: str) -> None:
    (tmp_path / "vocab.json").write_text("{}")
    (tmp_path / "merges.txt").touch()
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    with pytest.raises(CheckpointError, match=rf"{name} .*: it is a pipe .*fetch the file again"):
        read_tokenizer_files(tmp_path, 10, ())


@pytest.mark.parametrize("name", ["vocab.json", "added_tokens.json"])
@pytest.mark.parametrize(
    "content", ['{"x": "y", "z": 3}', '{"x": [1]}', '{"x": -1}', '{"x": 4294967296}', "[1]", r'{"\ud800": 1}', "{", ""]
)
def test_tokens_without_ids_are_named(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / "vocab.json").write_text('{"a": 0}')
    (tmp_path / "merges.txt").touch()
    assert read_tokenizer_files(tmp_path, 10, ()).tokenizer_json
    (tmp_path / name).write_text(content)
    with pytest.raises(CheckpointError, match=f"{name} holds no token ids by token: .* fetch the file again"):
        read_tokenizer_files(tmp_path, 10, ())


def test_vocab_and_merges_make_the_same_tokenizer(tmp_path: Path) -> None:
    """GPT-2 and OPT come with this older pair of files."""
    trained = tokenizers.ByteLevelBPETokenizer()
    texts = ["The quick brown fox's 12 dogs", "a fox, the fox; don't", "naïve 日本"] * 5
    trained.train_from_iterator(texts, vocab_size=330, special_tokens=["</s>"], show_progress=False)
    trained.save_model(str(tmp_path))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"bos_token": "</s>", "eos_token": "</s>"}))
    rebuilt = tokenizers.Tokenizer.from_buffer(read_tokenizer_files(tmp_path, 400, ()).tokenizer_json)
    for text in [*texts, "unseen text 🙂", "x</s>y"]:
        ids = rebuilt.encode(text).ids
        assert ids == trained.encode(text).ids
        assert rebuilt.decode(ids, skip_special_tokens=False) == text
