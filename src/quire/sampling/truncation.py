"""top-k, min-p and top-p of one row, each a prefix of one order: most likely first, equal tokens by lowest id.

Top-k and min-p come first, then top-p on what they leave, renormalised. Nothing sorts the vocabulary: top-k is a
selection, and top-p sorts only tokens heavy enough to be in its nucleus.

Shapes: V vocabulary, K kept tokens.
"""

from __future__ import annotations

import functools

import numpy as np

from quire.core.arrays import Float64Array, Int64Array


def kept_tokens(weights: Float64Array, top_k: int, top_p: float, min_p: float) -> tuple[Int64Array, Float64Array]:
    """Token ids [K], ascending, and weights [K] of the tokens that stay, out of weights [V] whose largest is 1.

    `top_k` 0, `top_p` 1 and `min_p` 0 keep everything.
    """
    ids = _all_ids(len(weights))
    if min_p > 0:
        ids, weights = _at_least(min_p, ids, weights)
    if 0 < top_k < len(weights):
        cut = np.partition(weights, len(weights) - top_k)[len(weights) - top_k]
        ids, weights = _first(top_k, cut, ids, weights)
    if top_p < 1:
        ids, weights = _nucleus(top_p, ids, weights)
    return ids, weights


def _nucleus(top_p: float, ids: Int64Array, weights: Float64Array) -> tuple[Int64Array, Float64Array]:
    """The fewest tokens that hold `top_p` of the total (Holtzman et al. 2020)."""
    total = weights.sum()
    # K tokens each lighter than (1 - top_p) / K of the total hold less than 1 - top_p: they are outside together.
    ids, weights = _at_least((1 - top_p) * total / len(weights), ids, weights)
    descending = np.sort(weights)[::-1]
    num_kept = min(int(np.cumsum(descending).searchsorted(top_p * total)) + 1, len(descending))
    return _first(num_kept, descending[num_kept - 1], ids, weights)


def _at_least(floor: float, ids: Int64Array, weights: Float64Array) -> tuple[Int64Array, Float64Array]:
    kept = (weights >= floor).nonzero()[0]
    return ids[kept], weights[kept]


def _first(count: int, cut: float, ids: Int64Array, weights: Float64Array) -> tuple[Int64Array, Float64Array]:
    """The `count` first tokens of the order, `cut` being the last one's weight."""
    ids, weights = _at_least(cut, ids, weights)
    if len(ids) > count:
        surplus = (weights == cut).nonzero()[0][count - len(ids) :]
        ids, weights = np.delete(ids, surplus), np.delete(weights, surplus)
    return ids, weights


@functools.cache
def _all_ids(vocab_size: int) -> Int64Array:
    return np.arange(vocab_size)
