"""Presence, frequency and repetition penalties: logits of tokens that already occurred are moved.

Repetition (Keskar et al. 2019) looks at prompt and output, the other two at the output alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

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
        self._ids = torch.zeros(_FIRST_CAPACITY, dtype=torch.int64)
        self._output_counts = torch.zeros(_FIRST_CAPACITY, dtype=torch.float32)

    def update(self) -> tuple[Tensor, Tensor]:
        """Distinct token ids, int64 [U], and how often each is in the output, float32 [U]."""
        new = self._token_ids[self._num_counted :]
        slots = [self._slots.setdefault(token_id, len(self._slots)) for token_id in new]
        self._reserve(len(self._slots))
        at = torch.tensor(slots, dtype=torch.int64)
        self._ids[at] = torch.tensor(new, dtype=torch.int64)
        in_output = at[max(0, self._num_prompt_tokens - self._num_counted) :]
        self._output_counts.index_add_(0, in_output, torch.ones(len(in_output)))
        self._num_counted = len(self._token_ids)
        return self._ids[: len(self._slots)], self._output_counts[: len(self._slots)]

    def _reserve(self, capacity: int) -> None:
        while len(self._ids) < capacity:
            self._ids = torch.cat([self._ids, torch.zeros_like(self._ids)])
            self._output_counts = torch.cat([self._output_counts, torch.zeros_like(self._output_counts)])


class Penalties:
    """The three penalties of one row."""

    def __init__(
        self, counts: TokenCounts, presence_penalty: float, frequency_penalty: float, repetition_penalty: float
    ) -> None:
        self._counts = counts
        self._presence = presence_penalty
        self._frequency = frequency_penalty
        self._repetition = repetition_penalty

    def apply(self, logits: Tensor) -> None:
        """Change logits, float32 [V], in place."""
        ids, output_counts = self._counts.update()
        moved = logits[ids]
        moved = torch.where(moved > 0, moved / self._repetition, moved * self._repetition)
        moved -= self._frequency * output_counts
        moved -= self._presence * (output_counts > 0)
        logits[ids] = moved
