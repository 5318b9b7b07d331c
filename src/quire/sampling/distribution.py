"""From logits to a token: the distribution as unnormalised weights, and one draw from it by its inverse.

The order of every addition is fixed by the row alone. torch's cumulative sum and numpy's sums are such; torch's `sum`
is not: it splits a long row over the threads when it comes alone but not in a batch, which moves the last bit.

Shapes: R rows, V vocabulary, K kept tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]
Int64Array = npt.NDArray[np.int64]


def most_likely(logits: Float32Array) -> tuple[Int64Array, Float32Array]:
    """The argmax of each row of [R, V], the lowest id where several are equal, and its logit.

    The logit is NaN where a row holds a NaN. numpy's argmax does in 0.3 ms what torch's does in 4.
    """
    best: Int64Array = logits.argmax(axis=-1)
    return best, logits[np.arange(len(logits)), best]


def token_weights(rows: Sequence[Float32Array], largest: Float32Array, temperatures: list[float]) -> Tensor:
    """exp((logits - largest) / temperature) of R rows [V], as float64 [R, V]: the most likely token weighs exactly 1."""
    logits = np.empty((len(rows), len(rows[0])))
    for i, row in enumerate(rows):
        logits[i] = row
    weights = torch.from_numpy(logits)
    weights -= torch.from_numpy(largest.astype(np.float64))[:, None]
    weights *= torch.tensor(temperatures, dtype=torch.float64).reciprocal_()[:, None]
    return weights.exp_()


def draw_each(weights: Tensor, uniforms: list[float]) -> list[int]:
    """One token id per row of float64 [R, V], with probability proportional to its weight; overwrites `weights`.

    A uniform is at most 1 - 2**-53, so its product with a total rounds to less than the total: some token is found.
    """
    cumulative = torch.cumsum(weights, dim=-1, out=weights)
    thresholds = torch.tensor(uniforms, dtype=torch.float64)[:, None] * cumulative[:, -1:]
    drawn: list[int] = torch.searchsorted(cumulative, thresholds, right=True).flatten().tolist()
    return drawn


def draw_one(weights: Float64Array, uniform: float) -> int:
    """As `draw_each` for one row [K]: the index drawn."""
    cumulative = weights.cumsum()
    return int(cumulative.searchsorted(uniform * cumulative[-1], side="right"))
