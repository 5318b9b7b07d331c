"""Choosing a backend by its capabilities, and saying why not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from quire.attention.cpu_backend import CpuBackend
from quire.attention.reference import ReferenceBackend
from quire.attention.select import BACKENDS, select_backend
from quire.attention.torch_backend import TorchBackend
from quire.checkpoint.model_config import LayerConfig, ModelConfig
from quire.core.native import has_native_module
from quire.errors import UnsupportedModelError
from quire.kernels.dtype import DType


class PlainBackend(TorchBackend):
    """A backend without the extras, as native ones begin."""

    name = "plain"
    capabilities = replace(
        TorchBackend.capabilities, dtypes=frozenset({DType.FLOAT32}), sliding_window=False, logit_softcap=False
    )


def config(window: int | None = None, softcap: float | None = None) -> ModelConfig:
    return ModelConfig(
        family="gemma3",
        architecture="Gemma3ForCausalLM",
        vocab_size=320,
        hidden_size=32,
        intermediate_size=64,
        num_layers=1,
        num_heads=4,
        num_kv_heads=1,
        head_dim=16,
        max_position=512,
        layers=(LayerConfig(window=window, rope=None),),
        activation="gelu_tanh",
        norm_eps=1e-6,
        attention_scale=0.25,
        attention_logit_softcap=softcap,
        tie_word_embeddings=True,
    )


def test_by_name() -> None:
    assert isinstance(select_backend("reference", torch.float32, config()), ReferenceBackend)
    assert isinstance(select_backend("torch", torch.bfloat16, config()), TorchBackend)
    if has_native_module():
        assert isinstance(select_backend("cpu", torch.bfloat16, config(), "int8"), CpuBackend)


@pytest.mark.parametrize(
    ("dtype", "model", "kv_cache_dtype", "reason"),
    [
        (torch.float32, config(window=8), "auto", "it has no sliding window"),
        (torch.float32, config(softcap=30.0), "auto", "it cannot soft-cap scores (attention_logit_softcap 30.0)"),
        (torch.bfloat16, config(), "auto", "it has no torch.bfloat16"),
        (torch.float32, config(), "int8", "it keeps KV in the model's dtype alone (set kv_cache_dtype"),
    ],
)
def test_a_refusal_names_its_reason(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, model: ModelConfig, kv_cache_dtype: str, reason: str
) -> None:
    monkeypatch.setitem(BACKENDS, "plain", f"{__name__}:PlainBackend")
    with pytest.raises(UnsupportedModelError) as refusal:
        select_backend("plain", dtype, model, kv_cache_dtype)
    assert f"Attention of backend plain does not fit Gemma3ForCausalLM: {reason}" in str(refusal.value)
