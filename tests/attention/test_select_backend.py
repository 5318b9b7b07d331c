"""Choosing a backend by its capabilities, and saying why not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from quire.attention import select
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


def test_by_name_and_fastest_first() -> None:
    assert isinstance(select_backend("reference", torch.float32, config()), ReferenceBackend)
    assert isinstance(select_backend("torch", torch.bfloat16, config()), TorchBackend)
    fastest = CpuBackend if has_native_module() else TorchBackend
    assert isinstance(select_backend("auto", torch.bfloat16, config()), fastest)
    assert isinstance(select_backend("auto", torch.float16, config()), TorchBackend)


@pytest.mark.skipif(not has_native_module(), reason="the native kernels were not built")
def test_int8_keys_and_values_leave_one_backend() -> None:
    assert isinstance(select_backend("auto", torch.bfloat16, config(), "int8"), CpuBackend)
    with pytest.raises(UnsupportedModelError, match=r"torch: keeps KV in the model.s dtype alone \(set kv_cache_dtype"):
        select_backend("torch", torch.bfloat16, config(), "int8")


@pytest.mark.parametrize(
    ("dtype", "model", "reason"),
    [
        (torch.float32, config(window=8), "plain: has no sliding window"),
        (torch.float32, config(softcap=30.0), "plain: cannot soft-cap scores (attention_logit_softcap 30.0)"),
        (torch.bfloat16, config(), "plain: has no torch.bfloat16"),
    ],
)
def test_a_refusal_names_each_backend_and_its_reason(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, model: ModelConfig, reason: str
) -> None:
    monkeypatch.setattr(select, "BACKENDS", {"plain": f"{__name__}:PlainBackend", **BACKENDS})
    assert select_backend("auto", dtype, model).name != "plain"
    with pytest.raises(UnsupportedModelError) as refusal:
        select_backend("plain", dtype, model)
    assert reason in str(refusal.value)
    assert "torch: not the one asked for" in str(refusal.value)
