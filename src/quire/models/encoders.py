"""The families of encoders."""

from __future__ import annotations

from typing import Any

from quire.attention.backend import AttentionBackend
from quire.checkpoint.checkpoint import Checkpoint
from quire.core.quantization import Quantization
from quire.kernels.ops import Ops
from quire.models import bert
from quire.models.registry import Encoder, ModelFamily, load_family

ENCODERS: dict[str, ModelFamily[Encoder]] = {
    "bert": ModelFamily(build=bert.build, prefix="bert."),
}


def load_encoder(
    checkpoint: Checkpoint,
    dtype: Any,
    ops: Ops,
    attention: AttentionBackend,
    quantization: Quantization = "none",
    *,
    keep_packed: bool = False,
) -> Encoder:
    """Raises CheckpointError where files and config do not fit together."""
    family = ENCODERS[checkpoint.config.family]
    return load_family(family, checkpoint, dtype, ops, attention, quantization, keep_packed=keep_packed)
