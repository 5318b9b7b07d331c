"""Presence, frequency and repetition penalties: logits of tokens that already occurred are moved.

Repetition (Keskar et al. 2019) looks at prompt and output, the other two at the output alone.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import NamedTuple

from quire.core.arrays import Float32Array


class TokenCounts:
    """Which tokens a live list of token ids holds, and how often each occurs after the prompt.

    Counting follows the list: `update` reads only what was appended since the last one, so a new object over a
    longer list (after a preemption or a fork) counts the same.
    """

    def __init__(self, token_ids: list[int], num_prompt_tokens: int) -> None:
        self.distinct = array("q")
        """U token ids, in the order in which they came."""
        self.in_output = array("f")
        """How often each of these is in the output."""
        self._token_ids = token_ids
        self._num_prompt_tokens = num_prompt_tokens
        self._num_counted = 0
        self._places: dict[int, int] = {}

    def update(self) -> None:
        """Count up to the end of the list."""
        for position in range(self._num_counted, len(self._token_ids)):
            token_id = self._token_ids[position]
            place = self._places.setdefault(token_id, len(self.distinct))
            if place == len(self.distinct):
                self.distinct.append(token_id)
                self.in_output.append(0)
            if position >= self._num_prompt_tokens:
                self.in_output[place] += 1
        self._num_counted = len(self._token_ids)


@dataclass(frozen=True, slots=True)
class Penalties:
    """The three penalties of one row. An extreme repetition penalty may take logits out of float32's range."""

    counts: TokenCounts
    presence: float
    frequency: float
    repetition: float


class PenalizedLogits(NamedTuple):
    """A row of logits [V], and where they go with their penalties, if there are any: it may be the same memory."""

    logits: Float32Array
    own: Float32Array
    penalties: Penalties | None
