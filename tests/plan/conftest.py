"""The two built-in models' configs, written out, and a machine: planning needs nothing else."""

from __future__ import annotations

import pytest

from quire.checkpoint.model_config import LayerConfig, ModelConfig, RopeConfig
from quire.plan.machine import Machine


@pytest.fixture
def smollm2_config() -> ModelConfig:
    return ModelConfig(
        family="llama",
        architecture="LlamaForCausalLM",
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_layers=30,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        max_position=8192,
        layers=(LayerConfig(window=None, rope=RopeConfig(theta=1e5, rotary_dim=64)),) * 30,
        activation="silu",
        norm_eps=1e-5,
        attention_scale=0.125,
        tie_word_embeddings=True,
        quantized_bytes=97_000_000,
    )


@pytest.fixture
def gemma_config() -> ModelConfig:
    """15 of 18 layers see a window of 512 tokens."""
    rope = RopeConfig(theta=1e6, rotary_dim=256)
    return ModelConfig(
        family="gemma3",
        architecture="Gemma3ForCausalLM",
        vocab_size=262144,
        hidden_size=640,
        intermediate_size=2048,
        num_layers=18,
        num_heads=4,
        num_kv_heads=1,
        head_dim=256,
        max_position=32768,
        layers=tuple(LayerConfig(window=512 if (i + 1) % 6 else None, rope=rope) for i in range(18)),
        activation="gelu_tanh",
        norm_eps=1e-6,
        attention_scale=1 / 16,
        tie_word_embeddings=True,
        qk_norm=True,
    )


@pytest.fixture
def machine() -> Machine:
    """A large server whose CPU multiplies bfloat16."""
    return Machine(
        free_memory=64 * 2**30,
        total_memory=64 * 2**30,
        memory_limited_by="the free memory of the machine",
        num_cores=8,
        cpu_name="test",
        cpu_features=frozenset({"avx512f", "amx_bf16"}),
        native_kernels=True,
    )
