"""From the hidden states of a text to its vector."""

from __future__ import annotations

import torch

from quire.checkpoint.model_config import PoolingKind

SMALLEST_NORM = 1e-12
"""A vector of zeros stays one."""


def pool(hidden: torch.Tensor, kind: PoolingKind) -> torch.Tensor:
    """[tokens, D] -> float32 [1, D]. A copy, so that the bits of a sum depend on this text alone (ADR 5)."""
    if kind == "cls":
        return hidden[:1].float().clone()
    return hidden.float().clone().mean(0, keepdim=True)


def shorten_and_normalize(vectors: torch.Tensor, dimensions: int | None, normalize: bool) -> torch.Tensor:
    """float32 [n, D] -> [n, dimensions or D], each of length 1 if asked for."""
    vectors = vectors[:, :dimensions].clone(memory_format=torch.contiguous_format)
    if normalize:
        vectors /= torch.linalg.vector_norm(vectors, dim=-1, keepdim=True).clamp_(min=SMALLEST_NORM)
    return vectors
