"""Choosing a backend: a search through the tables below, in order of speed."""

from __future__ import annotations

from typing import Any, cast

from quire.attention.backend import AttentionBackend
from quire.checkpoint.model_config import ModelConfig
from quire.core.places import load_place
from quire.errors import UnsupportedModelError
from quire.kernels.dtype import dtype_of

BACKENDS = {
    "cpu": "quire.attention.cpu_backend:CpuBackend",
    "torch": "quire.attention.torch_backend:TorchBackend",
    "reference": "quire.attention.reference:ReferenceBackend",
}
"""Named by string: `cpu` runs without torch."""
ENCODER_BACKENDS = {
    "cpu": "quire.attention.cpu_encoder:CpuEncoderBackend",
    "torch": "quire.attention.encoder:TorchEncoderBackend",
    "reference": "quire.attention.encoder:ReferenceEncoderBackend",
}


def select_backend(name: str, dtype: Any, config: ModelConfig, kv_cache_dtype: str = "auto") -> AttentionBackend:
    """The backend of that name, or for "auto" the fastest that can run the model.

    Raises UnsupportedModelError that says why each backend was refused.
    """
    refusals = []
    for candidate, place in (ENCODER_BACKENDS if config.is_encoder else BACKENDS).items():
        if name not in ("auto", candidate):
            refusals.append(f"{candidate}: not the one asked for")
            continue
        backend = cast(AttentionBackend, load_place(place)())
        reason = _refusal(backend, dtype, config, kv_cache_dtype)
        if reason is None:
            return backend
        refusals.append(f"{candidate}: {reason}")
    raise UnsupportedModelError(
        f"No attention backend fits backend={name!r}, dtype={dtype}, kv_cache_dtype={kv_cache_dtype} and"
        f" {config.architecture} ({'; '.join(refusals)})."
    )


def _refusal(backend: AttentionBackend, dtype: Any, config: ModelConfig, kv_cache_dtype: str) -> str | None:
    """Why this backend cannot serve, or None where it can."""
    can = backend.capabilities
    if dtype_of(dtype) not in can.dtypes:
        return f"has no {dtype}"
    if config.attention_logit_softcap is not None and not can.logit_softcap:
        return f"cannot soft-cap scores (attention_logit_softcap {config.attention_logit_softcap})"
    if not can.sliding_window and any(layer.window is not None for layer in config.layers):
        return "has no sliding window"
    if kv_cache_dtype == "int8" and not can.int8_kv:
        return "keeps KV in the model's dtype alone (set kv_cache_dtype to auto, or backend to cpu)"
    return None
