"""Tokens a row may not choose, and tokens it is nudged towards: each a small object that changes logits [V] in place."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from quire.core.arrays import Float32Array

FORBIDDEN = -np.inf


class AllowedTokens:
    """Nothing but these."""

    def __init__(self, token_ids: Sequence[int]) -> None:
        self._ids = np.array(token_ids, np.int64)

    def apply(self, logits: Float32Array) -> None:
        allowed = logits[self._ids]
        logits.fill(FORBIDDEN)
        logits[self._ids] = allowed


class BadWords:
    """A token is forbidden when it would complete one of these sequences within the output.

    `token_ids` is the row's live list, prompt and output.
    """

    def __init__(self, words: Sequence[tuple[int, ...]], token_ids: list[int], num_prompt_tokens: int) -> None:
        self._token_ids = token_ids
        self._num_prompt_tokens = num_prompt_tokens
        self._words = [(list(word[:-1]), word[-1]) for word in words]

    def apply(self, logits: Float32Array) -> None:
        for start, last in self._words:
            first = len(self._token_ids) - len(start)
            if first >= self._num_prompt_tokens and self._token_ids[first:] == start:
                logits[last] = FORBIDDEN


class MinTokens:
    """Stop tokens are forbidden until the output has `min_tokens`."""

    def __init__(
        self, min_tokens: int, stop_token_ids: Collection[int], token_ids: list[int], num_prompt_tokens: int
    ) -> None:
        self._token_ids = token_ids
        self._end = num_prompt_tokens + min_tokens
        self._stop_ids = np.array(sorted(stop_token_ids), np.int64)

    def apply(self, logits: Float32Array) -> None:
        if len(self._token_ids) < self._end:
            logits[self._stop_ids] = FORBIDDEN


class LogitBias:
    """A number added to the logits of some tokens."""

    def __init__(self, biases: Mapping[int, float]) -> None:
        self._ids = np.array(list(biases), np.int64)
        self._biases = np.array(list(biases.values()), np.float32)

    def apply(self, logits: Float32Array) -> None:
        logits[self._ids] += self._biases
