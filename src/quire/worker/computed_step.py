"""What the model made of one step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from quire.sampling.distribution import MostLikely


@dataclass(frozen=True, slots=True)
class ComputedStep:
    """T tokens of R rows, row after row; row r's are query_starts[r]:query_starts[r + 1]. To be read before the next step.

    hidden: [T, D]. Where the step has made all of them: logits, float32 [T, V], and the most likely token of each.
    """

    hidden: Any
    query_starts: list[int]
    logits: Any | None = None
    most_likely: MostLikely | None = None
