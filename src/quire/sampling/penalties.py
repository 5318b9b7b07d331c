"""Presence, frequency and repetition penalties: logits of tokens that already occurred are moved.

Repetition (Keskar et al. 2019) looks at prompt and output, the other two at the output alone.
"""

from __future__ import annotations

import numpy as np

from quire.sampling.distribution import Float32Array, Int64Array

_FIRST_CAPACITY = 64


class TokenCounts:
    """Which tokens a live list of token ids holds, and how often each occurs after the prompt.

    Counting follows the list: `update` reads only what was appended since the last one, so a new object over a
    longer list (after a preemption or a fork) counts the same.
    """

    def __init__(self, token_ids: list[int], num_prompt_tokens: int) -> None:
        self._token_ids = token_ids
        self._num_prompt_tokens = num_prompt_tokens
        self._num_counted = 0
        self._slots: dict[int, int] = {}
        self._ids: Int64Array = np.zeros(_FIRST_CAPACITY, np.int64)
        self._output_counts: Float32Array = np.zeros(_FIRST_CAPACITY, np.float32)

    def update(self) -> tuple[Int64Array, Float32Array]:
        """Distinct token ids [U], and how often each is in the output [U]; valid until the next update."""
        new = self._token_ids[self._num_counted :]
        slots = [self._slots.setdefault(token_id, len(self._slots)) for token_id in new]
        num_distinct = len(self._slots)
        if num_distinct > len(self._ids):
            self._grow(2 * num_distinct)
        self._ids[slots] = new
        np.add.at(self._output_counts, slots[max(0, self._num_prompt_tokens - self._num_counted) :], 1)
        self._num_counted = len(self._token_ids)
        return self._ids[:num_distinct], self._output_counts[:num_distinct]

    def _grow(self, capacity: int) -> None:
        missing = capacity - len(self._ids)
        self._ids = np.pad(self._ids, (0, missing))
        self._output_counts = np.pad(self._output_counts, (0, missing))


class Penalties:
    """The three penalties of one row."""

    def __init__(
        self, counts: TokenCounts, presence_penalty: float, frequency_penalty: float, repetition_penalty: float
    ) -> None:
        self._counts = counts
        self._presence = np.float32(presence_penalty)
        self._frequency = np.float32(frequency_penalty)
        self._repetition = repetition_penalty

    def apply(self, logits: Float32Array) -> None:
        """Change logits [V] in place. An extreme repetition penalty may take them out of float32's range."""
        ids, output_counts = self._counts.update()
        with np.errstate(over="ignore", invalid="ignore"):
            moved = logits[ids].astype(np.float64)
            moved = np.where(moved > 0, moved / self._repetition, moved * self._repetition).astype(np.float32)
        moved -= self._frequency * output_counts
        moved -= self._presence * (output_counts > 0)
        logits[ids] = moved
