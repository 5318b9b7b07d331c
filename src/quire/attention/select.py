"""The tables of attention backends, and whether one can run a model."""

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
    """The backend of that name, which plan/ chose. Raises UnsupportedModelError that says why it cannot run the model."""
    backend = cast(AttentionBackend, load_place((ENCODER_BACKENDS if config.is_encoder else BACKENDS)[name])())
    reason = _refusal(backend, dtype, config, kv_cache_dtype)
    if reason is not None:
        raise UnsupportedModelError(f"Attention of backend {name} does not fit {config.architecture}: it {reason}.")
    return backend


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
