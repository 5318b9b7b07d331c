"""Choosing a backend: a search through the tables below, in order of speed."""

from __future__ import annotations

import torch

from quire.attention.backend import AttentionBackend
from quire.attention.cpu_backend import CpuBackend
from quire.attention.encoder import CpuEncoderBackend, ReferenceEncoderBackend, TorchEncoderBackend
from quire.attention.reference import ReferenceBackend
from quire.attention.torch_backend import TorchBackend
from quire.checkpoint.model_config import ModelConfig
from quire.errors import UnsupportedModelError

BACKENDS: tuple[AttentionBackend, ...] = (CpuBackend(), TorchBackend(), ReferenceBackend())
ENCODER_BACKENDS: tuple[AttentionBackend, ...] = (
    CpuEncoderBackend(),
    TorchEncoderBackend(),
    ReferenceEncoderBackend(),
)


def select_backend(name: str, dtype: torch.dtype, config: ModelConfig) -> AttentionBackend:
    """The backend of that name, or for "auto" the fastest that can run the model.

    Raises UnsupportedModelError that says why each backend was refused.
    """
    refusals = []
    for backend in ENCODER_BACKENDS if config.is_encoder else BACKENDS:
        reason = _refusal(backend, name, dtype, config)
        if reason is None:
            return backend
        refusals.append(f"{backend.name}: {reason}")
    raise UnsupportedModelError(
        f"No attention backend fits backend={name!r}, dtype={dtype} and {config.architecture} ({'; '.join(refusals)})."
    )


def _refusal(backend: AttentionBackend, name: str, dtype: torch.dtype, config: ModelConfig) -> str | None:
    """Why this backend cannot serve, or None where it can."""
    can = backend.capabilities
    if name not in ("auto", backend.name):
        return "not the one asked for"
    if dtype not in can.dtypes:
        return f"has no {dtype}"
    if config.attention_logit_softcap is not None and not can.logit_softcap:
        return f"cannot soft-cap scores (attention_logit_softcap {config.attention_logit_softcap})"
    if not can.sliding_window and any(layer.window is not None for layer in config.layers):
        return "has no sliding window"
    return None
