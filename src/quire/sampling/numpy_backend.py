"""Sampling in numpy, row by row in float64."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from quire.core.arrays import Float32Array, Float64Array
from quire.core.step import TokenLogprobs
from quire.sampling.distribution import MostLikely, draw_one, token_weights
from quire.sampling.logprobs import token_logprobs
from quire.sampling.penalties import PenalizedLogits, Penalties
from quire.sampling.sampling_row import SamplingRow
from quire.sampling.truncation import kept_tokens

_CHUNK_ELEMENTS = 2**19
"""Float64 weights held at once: 4 MiB, which stay in the cache and bound the memory whatever the batch."""


class NumpySampling:
    def __init__(self, vocab_size: int) -> None:
        self._chunk_rows = max(1, _CHUNK_ELEMENTS // vocab_size)

    def penalize(self, rows: Sequence[PenalizedLogits]) -> MostLikely:
        for row in rows:
            row.own[:] = row.logits
            if row.penalties is not None:
                _penalize(row.own, row.penalties)
        token_ids = [int(row.own.argmax()) for row in rows]
        return MostLikely(token_ids, [float(row.own[token_id]) for row, token_id in zip(rows, token_ids, strict=True)])

    def draw(self, logits: Sequence[Float32Array], largest: Sequence[float], rows: Sequence[SamplingRow]) -> list[int]:
        token_ids = []
        for start in range(0, len(rows), self._chunk_rows):
            chunk = slice(start, start + self._chunk_rows)
            temperatures = [row.params.temperature for row in rows[chunk]]
            weights = token_weights(logits[chunk], largest[chunk], temperatures)
            token_ids += [_draw(own, row) for own, row in zip(weights, rows[chunk], strict=True)]
        return token_ids

    def logprobs(
        self, logits: Sequence[Float32Array], token_ids: Sequence[int], nums_logprobs: Sequence[int]
    ) -> list[TokenLogprobs]:
        return [
            token_logprobs(row, token_id, num_logprobs)
            for row, token_id, num_logprobs in zip(logits, token_ids, nums_logprobs, strict=True)
        ]


def _penalize(logits: Float32Array, penalties: Penalties) -> None:
    penalties.counts.update()
    ids, in_output = np.array(penalties.counts.distinct, np.int64), np.array(penalties.counts.in_output, np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        moved = logits[ids].astype(np.float64)
        moved = np.where(moved > 0, moved / penalties.repetition, moved * penalties.repetition)
        moved -= penalties.frequency * in_output
        moved -= penalties.presence * (in_output > 0)
        logits[ids] = moved.astype(np.float32)


def _draw(weights: Float64Array, row: SamplingRow) -> int:
    if not row.truncates:
        return draw_one(weights, row.uniform())
    ids, kept = kept_tokens(weights, row.params.top_k, row.params.top_p, row.params.min_p)
    return int(ids[draw_one(kept, row.uniform())])
