"""Workloads are decided by their seed, keep the asked-for lengths, and read the usual dataset shapes."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.bench.workloads import Lengths, dataset_workload, parse_lengths, synthetic_workload
from quire.checkpoint.checkpoint import open_checkpoint
from quire.engine.tokenizer import Tokenizer
from quire.errors import InvalidRequestError

ANY = Lengths(1, 10_000)
ONE = Lengths(1, 1)


@pytest.fixture(scope="module")
def tokenizer(tiny_llama: Path) -> Tokenizer:
    """One token a byte."""
    return Tokenizer(open_checkpoint(str(tiny_llama)).tokenizer)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 2**32))
def test_synthetic_lengths_ids_and_seed(a: int, b: int, seed: int) -> None:
    lengths = Lengths(min(a, b), max(a, b))
    workload = synthetic_workload(50, 5, lengths, lengths, seed)
    assert len(workload) == 5
    for request in workload:
        assert lengths.low <= len(request.prompt_token_ids) <= lengths.high
        assert lengths.low <= request.num_output_tokens <= lengths.high
        assert all(0 <= token_id < 50 for token_id in request.prompt_token_ids)
    assert workload == synthetic_workload(50, 5, lengths, lengths, seed)


def test_another_seed_is_another_workload() -> None:
    assert synthetic_workload(50, 2, ANY, ONE, 0) != synthetic_workload(50, 2, ANY, ONE, 1)


@pytest.mark.parametrize(("text", "lengths"), [("7", Lengths(7, 7)), ("128:512", Lengths(128, 512))])
def test_lengths(text: str, lengths: Lengths) -> None:
    assert parse_lengths(text) == lengths
    assert str(lengths) == text


@pytest.mark.parametrize("text", ["", "0", "5:3", "-1:4", "a", "1:2:3", "1.5"])
def test_wrong_lengths_are_a_usage_error(text: str) -> None:
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("--n", type=parse_lengths)
    with pytest.raises(argparse.ArgumentError):
        parser.parse_args([f"--n={text}"])


def test_pieces_of_a_text(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "novel.txt"
    path.write_text("".join(chr(97 + i % 26) for i in range(500)))
    workload = dataset_workload(path, tokenizer, 8, Lengths(20, 30), Lengths(3, 3), 0)
    whole = tokenizer.encode(path.read_text(), add_special_tokens=False)
    pieces = {tuple(request.prompt_token_ids) for request in workload}
    windows = {tuple(whole[i : i + n]) for i in range(500) for n in range(20, 31)}
    assert pieces <= windows
    assert len(workload) == 8
    assert all(request.num_output_tokens == 3 for request in workload)
    assert workload == dataset_workload(path, tokenizer, 8, Lengths(20, 30), Lengths(3, 3), 0)


ROWS: list[dict[str, Any]] = [
    {"prompt": "a plain prompt"},
    {"text": "a text"},
    {"conversations": [{"from": "system", "value": "no"}, {"from": "human", "value": "a question"}]},
    {"messages": [{"role": "user", "content": "a message"}, {"role": "assistant", "content": "no"}]},
]
TEXTS = {"a plain prompt", "a text", "a question", "a message"}


@pytest.mark.parametrize("suffix", [".jsonl", ".json"])
def test_shapes_of_json_datasets(tokenizer: Tokenizer, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"data{suffix}"
    path.write_text("\n".join(map(json.dumps, ROWS)) if suffix == ".jsonl" else json.dumps(ROWS))
    workload = dataset_workload(path, tokenizer, 4, Lengths(100, 100), ONE, 0)
    assert {tokenizer.decode(request.prompt_token_ids) for request in workload} == TEXTS


def test_conversations_without_a_human_are_passed_over(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    passed_over = [{"conversations": [{"from": "gpt", "value": "alone"}]}, {"messages": [{"role": "user"}]}]
    path.write_text("\n".join(map(json.dumps, [*passed_over, ROWS[0]])))
    assert len(dataset_workload(path, tokenizer, 1, ANY, ONE, 0)) == 1
    with pytest.raises(InvalidRequestError, match="holds 1 prompts, but 2"):
        dataset_workload(path, tokenizer, 2, ANY, ONE, 0)


def test_lines_of_a_dataset_end_where_those_of_json_do(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes('{"prompt": "a\u2028b\x85c"}\r\n \n{"prompt": "d"}\n'.encode())
    workload = dataset_workload(path, tokenizer, 2, Lengths(100, 100), ONE, 0)
    assert {tokenizer.decode(request.prompt_token_ids) for request in workload} == {"a\u2028b\x85c", "d"}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("short.txt", b"abc", "holds 0 prompts"),
        ("broken.jsonl", b'{"prompt": ', "is not JSON"),
        ("deep.jsonl", b"[" * 100_000, "is not JSON"),
        ("deep.json", b"[" * 100_000, "is not JSON"),
        ("long.json", b"[" + b"9" * 5000 + b"]", "is not JSON"),
        ("other.jsonl", b'{"question": "x"}', "object 1 has none of the keys"),
        ("scalar.json", b"[3]", "object 1 has none of the keys"),
        ("number.json", b"5", "is not a JSON list"),
        ("object.json", b'{"prompt": "x"}', "is not a JSON list"),
        ("latin.txt", b"\xff\xfe\xfa", "cannot be read as UTF-8"),
        ("missing.txt", None, "cannot be read"),
        ("missing.json", None, "cannot be read"),
    ],
)
def test_unusable_datasets(
    tokenizer: Tokenizer, tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidRequestError, match=message):
        dataset_workload(path, tokenizer, 1, Lengths(10, 20), ONE, 0)
