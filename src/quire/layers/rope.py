"""Rotary position embedding (Su et al. 2021): the angles. `ops.rope` does the rotating."""

from __future__ import annotations

import math

import torch

from quire.checkpoint.model_config import LinearRopeScaling, Llama3RopeScaling, RopeConfig

Rotation = tuple[torch.Tensor, torch.Tensor]
"""cos and sin of one step's positions, each [T, rotary_dim / 2] in the model's dtype."""

TABLE_STEP = 1024
"""Positions added to the table at a time. Always as many, so that an entry's bits do not depend on when it was made."""


class RotaryEmbedding:
    """cos and sin by position. The table grows to the longest context seen, not to the longest the model allows."""

    def __init__(self, config: RopeConfig, dtype: torch.dtype, divisors: torch.Tensor | None = None) -> None:
        """`divisors` [rotary_dim / 2] divide the frequencies where the checkpoint stores them (StoredRopeScaling)."""
        self._frequencies = frequencies(config)
        if divisors is not None:
            self._frequencies /= divisors
        self._cos = torch.empty(0, config.rotary_dim // 2, dtype=dtype)
        self._sin = self._cos

    def rotation(self, positions: torch.Tensor, longest: int) -> Rotation:
        """`positions` int64 [T], all below `longest`."""
        self.reach(longest)
        return self._cos.index_select(0, positions), self._sin.index_select(0, positions)

    def reach(self, longest: int) -> None:
        """Make the table long enough for all positions below `longest`."""
        if self._cos.shape[0] >= longest:
            return
        cos, sin, dtype = [self._cos], [self._sin], self._cos.dtype
        for size in range(self._cos.shape[0], longest, TABLE_STEP):
            positions = torch.arange(size, size + TABLE_STEP, dtype=torch.float32)
            angles = positions[:, None] * self._frequencies
            cos.append(angles.cos().to(dtype))
            sin.append(angles.sin().to(dtype))
        self._cos, self._sin = torch.cat(cos), torch.cat(sin)


def frequencies(config: RopeConfig) -> torch.Tensor:
    """Radians a position, float32 [rotary_dim / 2], fastest first."""
    exponents = torch.arange(0, config.rotary_dim, 2, dtype=torch.float32) / config.rotary_dim
    plain = 1.0 / config.theta**exponents
    if isinstance(config.scaling, LinearRopeScaling):
        return plain / config.scaling.factor
    if isinstance(config.scaling, Llama3RopeScaling):
        return _scale_as_llama3(plain, config.scaling)
    return plain


def _scale_as_llama3(plain: torch.Tensor, scaling: Llama3RopeScaling) -> torch.Tensor:
    """Waves longer than the original context are slowed by `factor`, short ones kept, those between blended."""
    turns = scaling.original_max_position * plain / (2 * math.pi)
    kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = kept.clamp(0.0, 1.0)
    return (1 - kept) * plain / scaling.factor + kept * plain
