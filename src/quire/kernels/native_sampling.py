"""Sampling from rows of logits (csrc/penalties.cpp, csrc/sampling.cpp)."""

from __future__ import annotations

from typing import NamedTuple

from quire.kernels.native_module import current_instruction_set, module, thread_count

Address = int
"""Of a row of contiguous float32 [V], unless it says of what."""


class PenalizedRow(NamedTuple):
    logits: Address
    penalized: Address
    """Where they go; it may be the same."""
    token_ids: Address
    """Of int64 [U], each once."""
    in_output: Address
    """Of float32 [U], how often."""
    num_tokens: int
    presence: float
    frequency: float
    repetition: float


def penalize(rows: list[PenalizedRow], vocab_size: int) -> tuple[list[int], list[float]]:
    """The most likely token of each row then, and its logit."""
    found: tuple[list[int], list[float]] = module().penalize(
        isa=current_instruction_set(), rows=rows, vocab_size=vocab_size, num_threads=thread_count()
    )
    return found


class DrawnRow(NamedTuple):
    """Its largest logit is finite, and none is NaN. `top_k` 0, `top_p` 1 and `min_p` 0 keep everything."""

    logits: Address
    uniform: float
    """In [0, 1): the share of the kept weights, by token id, that lies before the token."""
    temperature: float
    min_p: float
    top_p: float
    top_k: int


def draw(rows: list[DrawnRow], vocab_size: int) -> list[int]:
    """A token id for each row."""
    token_ids: list[int] = module().draw(
        isa=current_instruction_set(), rows=rows, vocab_size=vocab_size, num_threads=thread_count()
    )
    return token_ids


class LogprobsRow(NamedTuple):
    logits: Address
    token_id: int
    num_top: int
    """Of the most likely tokens, at most V."""


def logprobs(rows: list[LogprobsRow], vocab_size: int) -> tuple[list[int], list[float], list[int]]:
    """Token ids and their logprobs, row after row: the row's own token, then the most likely ones in their order; and each own
    token's rank, from 1 on."""
    assert all(0 <= row.token_id < vocab_size and 0 <= row.num_top <= vocab_size for row in rows)
    found: tuple[list[int], list[float], list[int]] = module().logprobs(
        isa=current_instruction_set(), rows=rows, vocab_size=vocab_size, num_threads=thread_count()
    )
    return found
