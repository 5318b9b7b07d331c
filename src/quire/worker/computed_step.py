"""What the model made of one step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from quire.core.arrays import Float32Array
from quire.sampling.distribution import MostLikely


@dataclass(frozen=True, slots=True)
class ComputedStep:
    """T tokens of R rows, all that were computed or each row's last one, row after row; row r's are
    query_starts[r]:query_starts[r + 1]. To be read before the next step.

    hidden: [T, D], as the model makes it. Where the step has made them: logits [T, V] of all, and what reads the most likely
    token of each.
    """

    hidden: Any
    query_starts: list[int]
    logits: Float32Array | None = None
    most_likely: Callable[[], MostLikely] | None = None
