"""Rotary position embedding (Su et al. 2021): the angles. `ops.rope` does the rotating."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from quire.checkpoint.model_config import LinearRopeScaling, Llama3RopeScaling, RopeConfig
from quire.kernels.tensor import Tensor, Tensors

Rotation = tuple[Tensor, Tensor]
"""cos and sin of one step's positions, each [T, rotary_dim / 2] in the model's dtype."""
Floats = npt.NDArray[np.float32]

TABLE_STEP = 1024
"""Positions added to the table at a time. Always as many, so that an entry's bits do not depend on when it was made."""


class RotaryEmbedding:
    """cos and sin by position. The table grows to the longest context seen, not to the longest the model allows."""

    def __init__(self, config: RopeConfig, tensors: Tensors, dtype: Any, divisors: Floats | None = None) -> None:
        """`divisors` [rotary_dim / 2] divide the frequencies where the checkpoint stores them (StoredRopeScaling)."""
        self._frequencies = frequencies(config)
        if divisors is not None:
            self._frequencies /= divisors
        self._tensors = tensors
        self._dtype = dtype
        self._length = 0
        self._cos = self._sin = tensors.empty((0, config.rotary_dim // 2), dtype)

    def rotation(self, positions: Tensor, longest: int) -> Rotation:
        """`positions` int64 [T], all below `longest`."""
        self.reach(longest)
        return self._cos.index_select(0, positions), self._sin.index_select(0, positions)

    def reach(self, longest: int) -> None:
        """Make the table long enough for all positions below `longest`."""
        if self._length >= longest:
            return
        self._length = -(-longest // TABLE_STEP) * TABLE_STEP
        shape = (self._length, len(self._frequencies))
        self._cos, self._sin = self._tensors.empty(shape, self._dtype), self._tensors.empty(shape, self._dtype)
        for start in range(0, self._length, TABLE_STEP):
            rows = slice(start, start + TABLE_STEP)
            angles = np.arange(start, start + TABLE_STEP, dtype=np.float32)[:, None] * self._frequencies
            self._tensors.copy(self._cos[rows], np.cos(angles), "float32")
            self._tensors.copy(self._sin[rows], np.sin(angles), "float32")


def frequencies(config: RopeConfig) -> Floats:
    """Radians a position, float32 [rotary_dim / 2], fastest first."""
    exponents = np.arange(0, config.rotary_dim, 2, dtype=np.float32) / np.float32(config.rotary_dim)
    plain = np.float32(1.0) / np.float32(config.theta) ** exponents
    if isinstance(config.scaling, LinearRopeScaling):
        return plain / np.float32(config.scaling.factor)
    if isinstance(config.scaling, Llama3RopeScaling):
        return _scale_as_llama3(plain, config.scaling)
    return plain


def _scale_as_llama3(plain: Floats, scaling: Llama3RopeScaling) -> Floats:
    """Waves longer than the original context are slowed by `factor`, short ones kept, those between blended."""
    turns = plain * np.float32(scaling.original_max_position / (2 * math.pi))
    kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = np.clip(kept, 0.0, 1.0).astype(np.float32)
    slowed: Floats = (1 - kept) * plain / np.float32(scaling.factor) + kept * plain
    return slowed
