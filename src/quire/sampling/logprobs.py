"""Logprobs and ranks, from the model's own logits before anything changes them.

Ranks follow the order everything here follows: most likely first, equal tokens by lowest id. So the greedy token has
rank 1 and the k reported tokens have ranks 1 ... k.

Shapes: V vocabulary.
"""

from __future__ import annotations

import numpy as np

from quire.core.arrays import Float32Array, Int64Array
from quire.core.sampling_params import ALL_LOGPROBS
from quire.core.step import TokenLogprobs


def log_softmax(logits: Float32Array) -> Float32Array:
    """Of one row [V], the sum in float64: its order follows from V alone."""
    with np.errstate(invalid="ignore"):
        shifted: Float32Array = logits - logits.max()
        shifted -= np.float32(np.log(np.exp(shifted).sum(dtype=np.float64)))
    return shifted


def token_logprobs(logits: Float32Array, token_id: int, num_logprobs: int) -> TokenLogprobs:
    """Of logits [V]: the chosen token first, then the most likely ones in order."""
    logprobs = log_softmax(logits)
    top = top_tokens(logits, len(logits) if num_logprobs == ALL_LOGPROBS else num_logprobs)
    top_ids: list[int] = top.tolist()
    top_logprobs: list[float] = logprobs[top].tolist()
    return TokenLogprobs(
        token_ids=[token_id, *top_ids],
        logprobs=[float(logprobs[token_id]), *top_logprobs],
        ranks=[rank(logits, token_id), *range(1, len(top_ids) + 1)],
    )


def top_tokens(logits: Float32Array, count: int) -> Int64Array:
    """The `count` most likely token ids (all of them if there are fewer), most likely first."""
    if count == 0:
        return np.empty(0, np.int64)
    candidates = np.arange(len(logits))
    if count < len(logits):
        cut = np.partition(logits, len(logits) - count)[len(logits) - count]
        candidates = np.flatnonzero(logits >= cut)
    order = np.argsort(-logits[candidates], kind="stable")
    return candidates[order[:count]]


def rank(logits: Float32Array, token_id: int) -> int:
    """1 for the most likely token of the vocabulary."""
    logit = logits[token_id]
    num_above = np.count_nonzero(logits > logit)
    num_equal_before = np.count_nonzero(logits[:token_id] == logit)
    return int(num_above + num_equal_before) + 1
