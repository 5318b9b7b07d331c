"""The activation functions a checkpoint may ask for, by the name `ModelConfig.activation` uses."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
}


def softcap_rows(logits: torch.Tensor, cap: float) -> torch.Tensor:
    """Row by row, in place: the bits of a vectorized tanh depend on where in a buffer an element lies (ADR 5)."""
    for row in logits.unbind():
        row.copy_(torch.tanh(row / cap) * cap)
    return logits
