"""What a benchmark asks for: made-up token ids of chosen lengths, or real text from a file."""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire.engine.tokenizer import Tokenizer
from quire.errors import InvalidRequestError, in_words

HUMAN_ROLES = ("human", "user")


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """One prompt and exactly how many tokens to generate (end-of-text is ignored)."""

    prompt_token_ids: list[int]
    num_output_tokens: int


@dataclass(frozen=True, slots=True)
class Lengths:
    """Token counts, uniform over [low, high]."""

    low: int
    high: int

    def draw(self, rng: random.Random) -> int:
        return rng.randint(self.low, self.high)

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low}:{self.high}"


def parse_lengths(text: str) -> Lengths:
    """ "128" or "128:512", for argparse."""
    low, _, high = text.partition(":")
    with suppress(ValueError):
        lengths = Lengths(int(low), int(high or low))
        if 1 <= lengths.low <= lengths.high:
            return lengths
    raise argparse.ArgumentTypeError(
        f"{text!r} is no number of tokens from 1 on, such as 128, nor a range such as 128:512"
    )


def synthetic_workload(
    vocab_size: int, num_prompts: int, input_len: Lengths, output_len: Lengths, seed: int
) -> list[BenchRequest]:
    """Random token ids: no two prompts share a prefix, so nothing is cached. The seed decides everything."""
    rng = random.Random(seed)  # noqa: S311
    return [
        BenchRequest(
            [rng.randrange(vocab_size) for _ in range(input_len.draw(rng))],
            output_len.draw(rng),
        )
        for _ in range(num_prompts)
    ]


def dataset_workload(
    path: Path, tokenizer: Tokenizer, num_prompts: int, input_len: Lengths, output_len: Lengths, seed: int
) -> list[BenchRequest]:
    """Prompts from a file, in a seeded random order, each cut to a length drawn from `input_len`.

    .txt is one long text: the prompts are pieces of it. .jsonl (an object a line) and .json (a list of objects) give a
    prompt an object: its `prompt` or `text`, or the first human turn of `conversations` (ShareGPT) or `messages`.
    Raises InvalidRequestError if the file cannot be read or has too few prompts.
    """
    rng = random.Random(seed)  # noqa: S311
    if path.suffix == ".txt":
        token_ids = tokenizer.encode(_read(path), add_special_tokens=False)
        prompts = _pieces(token_ids, num_prompts, input_len, rng)
    else:
        texts = [text for row, place in read_rows(path) if (text := prompt_of(row, place))]
        rng.shuffle(texts)
        encoded = (tokenizer.encode(text)[: input_len.draw(rng)] for text in texts)
        prompts = [token_ids for token_ids, _ in zip(encoded, range(num_prompts), strict=False)]
    if len(prompts) < num_prompts:
        raise InvalidRequestError(
            f"{path} holds {len(prompts)} prompts, but {num_prompts} were asked for; lower num_prompts.",
            field="num_prompts",
            value=num_prompts,
        )
    return [BenchRequest(prompt, output_len.draw(rng)) for prompt in prompts]


def _pieces(token_ids: list[int], num_prompts: int, input_len: Lengths, rng: random.Random) -> list[list[int]]:
    """Pieces from random places; they may overlap, but none starts where another does."""
    num_starts = len(token_ids) - input_len.high + 1
    if num_starts < num_prompts:
        return []
    starts = rng.sample(range(num_starts), num_prompts)
    return [token_ids[start : start + input_len.draw(rng)] for start in starts]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError(
            f"The dataset {path} cannot be read as UTF-8 text: {in_words(error)}.", field="dataset"
        ) from error


def read_rows(path: Path) -> Iterator[tuple[Any, str]]:
    """The objects of a .json list or a .jsonl, each with its place for messages."""
    text = _read(path)
    try:
        # Not splitlines: a JSON text may hold U+2028 and other characters that end a line for Python.
        lines = [line for line in text.split("\n") if line.strip()]
        rows = json.loads(text) if path.suffix == ".json" else [json.loads(line) for line in lines]
    except (ValueError, RecursionError) as error:  # also of numbers too long, of lists too deep
        raise InvalidRequestError(f"The dataset {path} is not JSON: {error}.", field="dataset") from error
    if not isinstance(rows, list):
        raise InvalidRequestError(f"The dataset {path} is not a JSON list of objects.", field="dataset")
    for number, row in enumerate(rows, start=1):
        yield row, f"{path}, object {number}"


def prompt_of(row: Any, place: str) -> str:
    """The prompt in one object of a dataset; empty if a conversation has no human turn."""
    if isinstance(row, dict):
        for key in ("prompt", "text"):
            if isinstance(row.get(key), str):
                return str(row[key])
        turns = turns_of(row)
        if turns is not None:
            return next((str(text) for role, text in turns if role in HUMAN_ROLES and text is not None), "")
    raise InvalidRequestError(f"{place} has none of the keys prompt, text, conversations, messages.", field="dataset")


def turns_of(row: dict[str, Any]) -> list[tuple[Any, Any]] | None:
    """Who says what in a conversation of ShareGPT's or of OpenAI's form; None where the object has neither."""
    for turns_key, role_key, text_key in (("conversations", "from", "value"), ("messages", "role", "content")):
        turns = row.get(turns_key)
        if isinstance(turns, list):
            return [(turn.get(role_key), turn.get(text_key)) for turn in turns if isinstance(turn, dict)]
    return None
