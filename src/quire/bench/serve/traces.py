"""Recorded traffic: the CSV of Azure's LLM inference traces (2023) and the JSONL of Mooncake's (FAST '25).

Both give each request's time, prompt length and output length, not its text. Mooncake's `hash_ids` name the prompt's
blocks of 512 tokens: two prompts with the same first ids share that prefix, and so do the prompts made here.
"""

from __future__ import annotations

import csv
import json
import math
import random
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from quire.errors import InvalidRequestError, in_words

MOONCAKE_BLOCK = 512
"""Tokens that one hash id stands for."""
MAX_TOKENS = 10**8
"""No model reads or writes as many: a larger count is damage, and its prompt would fill the memory."""


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """`arrival` is in seconds. Without `hash_ids` the prompt shares nothing."""

    arrival: float
    num_input_tokens: int
    num_output_tokens: int
    hash_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TraceScale:
    """How a recorded trace is fitted to a machine.

    `time` stretches the gaps (2 takes twice as long). `tokens` multiplies lengths; what then still exceeds
    `max_input` or `max_output` is cut.
    """

    time: float = 1.0
    tokens: float = 1.0
    max_input: int | None = None
    max_output: int | None = None

    def __post_init__(self) -> None:
        for name in ("time", "tokens"):
            if not 0 < getattr(self, name) < float("inf"):
                raise InvalidRequestError(f"--{name.removesuffix('s')}-scale must be above 0.", field=name)

    def input_length(self, traced: TracedRequest) -> int:
        return _scaled(traced.num_input_tokens, self.tokens, self.max_input)

    def output_length(self, traced: TracedRequest) -> int:
        return _scaled(traced.num_output_tokens, self.tokens, self.max_output)

    def cuts(self, traced: TracedRequest) -> bool:
        """Whether a limit, not the scale, decides one of the lengths."""
        return self.input_length(traced) < _scaled(traced.num_input_tokens, self.tokens, None) or (
            self.output_length(traced) < _scaled(traced.num_output_tokens, self.tokens, None)
        )


def _scaled(length: int, scale: float, limit: int | None) -> int:
    scaled = max(1, round(length * scale))
    return scaled if limit is None else min(scaled, limit)


def read_trace(path: Path, limit: int | None = None) -> list[TracedRequest]:
    """The first `limit` requests in order of time, from 0 on. Raises InvalidRequestError naming the line that is not of a trace."""
    requests: list[TracedRequest] = []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = enumerate(csv.DictReader(file), 2) if path.suffix == ".csv" else enumerate(file, 1)
            for number, row in rows:
                try:
                    requests.append(_azure(row) if isinstance(row, dict) else _mooncake(json.loads(row)))
                except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
                    raise InvalidRequestError(
                        f"{path}, line {number} is neither of an Azure (.csv) nor a Mooncake (.jsonl) trace: {error!r}.",
                        field="dataset_path",
                    ) from error
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidRequestError(
            f"The trace {path} cannot be read: {in_words(error)}.", field="dataset_path"
        ) from error
    if not requests:
        raise InvalidRequestError(f"The trace {path} holds no requests.", field="dataset_path")
    requests.sort(key=lambda traced: traced.arrival)
    start = requests[0].arrival
    return [replace(traced, arrival=traced.arrival - start) for traced in requests[:limit]]


def _azure(row: dict[str, str]) -> TracedRequest:
    """Timestamps have seven digits of a second; datetime reads six."""
    at = datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp()
    return TracedRequest(at, _count(row["ContextTokens"]), _count(row["GeneratedTokens"]))


def _mooncake(row: dict[str, Any]) -> TracedRequest:
    """Timestamps are milliseconds."""
    at, hash_ids = row["timestamp"] / 1000, tuple(int(hash_id) for hash_id in row["hash_ids"])
    if not math.isfinite(at):
        raise ValueError(f"the timestamp is {at}")
    return TracedRequest(at, _count(row["input_length"]), _count(row["output_length"]), hash_ids)


def _count(value: str | float) -> int:
    count = int(value)
    if count > MAX_TOKENS:
        raise ValueError(f"{count} tokens are more than {MAX_TOKENS}")
    return count


def make_prompt(traced: TracedRequest, scale: TraceScale, index: int, words: list[int], seed: int) -> list[int]:
    """Made-up token ids out of `words`; equal hash ids give equal blocks, whichever request they come in."""
    length = scale.input_length(traced)
    block = max(1, round(MOONCAKE_BLOCK * scale.tokens))
    prompt: list[int] = []
    for hash_id in traced.hash_ids:
        if len(prompt) >= length:
            break
        prompt += _block(f"{seed} {hash_id}", words, block)
    if len(prompt) < length:
        prompt += _block(f"{seed} own {index}", words, length - len(prompt))
    return prompt[:length]


def _block(key: str, words: list[int], length: int) -> list[int]:
    return random.Random(key).choices(words, k=length)  # noqa: S311
