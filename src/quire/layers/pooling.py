"""From the hidden states of a text to its vector.

Sums are float64's and over one text's numbers alone: the bits do not depend on which texts were computed with it (ADR 5).
"""

from __future__ import annotations

import numpy as np

from quire.checkpoint.model_config import PoolingKind
from quire.core.arrays import Float32Array

SMALLEST_NORM = 1e-12
"""A vector of zeros stays one."""


def pool(hidden: Float32Array, kind: PoolingKind) -> Float32Array:
    """[tokens, D] -> [1, D]."""
    if kind == "cls":
        return hidden[:1]
    mean: Float32Array = hidden.mean(0, np.float64, keepdims=True).astype(np.float32)
    return mean


def shorten_and_normalize(vectors: Float32Array, dimensions: int | None, normalize: bool) -> Float32Array:
    """[n, D] -> [n, dimensions or D], each of length 1 if asked for; in memory of their own."""
    vectors = vectors[:, :dimensions].copy()
    if normalize:
        lengths = np.sqrt(np.square(vectors, dtype=np.float64).sum(-1, keepdims=True))
        vectors /= np.maximum(lengths, SMALLEST_NORM).astype(np.float32)
    return vectors
