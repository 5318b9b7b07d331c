"""An encoder's memory: no KV cache, and steps of whole texts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quire.checkpoint.families import read_config
from quire.checkpoint.model_config import ModelConfig, PoolingConfig
from quire.config import EngineConfig
from quire.errors import InvalidRequestError, OutOfMemoryError, UnsupportedModelError
from quire.plan.machine import Machine
from quire.plan.memory import Demand, plan_memory
from quire.plan.render import render_plan
from quire.plan.resolve import resolve

MIB = 2**20


@pytest.fixture
def minilm_config() -> ModelConfig:
    config = read_config(
        {
            "architectures": ["BertModel"],
            "hidden_size": 384,
            "intermediate_size": 1536,
            "max_position_embeddings": 512,
            "num_attention_heads": 12,
            "num_hidden_layers": 6,
            "vocab_size": 30522,
        },
        "config.json",
    )
    return replace(config, pooling=PoolingConfig(kind="mean", normalize=True, max_tokens=256))


def demand(max_model_len: int = 256) -> Demand:
    return Demand(dtype="float32", max_model_len=max_model_len, enable_chunked_prefill=False)


def test_nothing_is_reserved_for_kv(minilm_config: ModelConfig, machine: Machine) -> None:
    config = resolve(EngineConfig(model="minilm"), minilm_config, machine)
    assert config.task == "embed"
    assert config.kv_cache.groups == ()
    assert config.kv_cache.bytes_per_block == 0
    assert config.memory.need.kv_cache == 0
    assert config.worker.max_model_len == 256
    assert config.max_concurrency == 512 / 256
    assert "No KV cache" in config.kv_cache_line
    assert not any(reason.startswith(("num_blocks", "block_size")) for reason in config.reasons)


def test_knobs_of_the_kv_cache_are_said_to_change_nothing(minilm_config: ModelConfig, machine: Machine) -> None:
    config = resolve(EngineConfig(model="minilm", num_blocks=500, preallocate_kv_cache=True), minilm_config, machine)
    assert (
        "num_blocks, preallocate_kv_cache: an encoder keeps no keys and values, so this changes nothing."
        in config.reasons
    )


def test_the_weights_and_a_step_are_what_it_needs(minilm_config: ModelConfig) -> None:
    need = plan_memory(minilm_config, demand(), 1024 * MIB).need
    assert need.weights == 4 * 22_565_376
    # At its peak a step of 512 tokens holds the inner MLP twice and the residual three times.
    assert need.activations >= 512 * (2 * 1536 + 3 * 384) * 4
    assert need.activations < 60 * MIB


def test_positions_are_the_limit_and_the_tuned_length_the_default(minilm_config: ModelConfig, machine: Machine) -> None:
    assert resolve(EngineConfig(max_model_len=512), minilm_config, machine).worker.max_model_len == 512
    with pytest.raises(InvalidRequestError, match=r"513, but .* 512"):
        resolve(EngineConfig(max_model_len=513), minilm_config, machine)


def test_too_little_memory_has_a_remedy(minilm_config: ModelConfig, machine: Machine) -> None:
    small = replace(machine, free_memory=150 * MIB)
    with pytest.raises(OutOfMemoryError, match=r"needs .*weights 86.1 MiB, KV cache 0 B.*; give it"):
        resolve(EngineConfig(model="minilm"), minilm_config, small)


def test_a_task_the_architecture_cannot_do(
    minilm_config: ModelConfig, smollm2_config: ModelConfig, machine: Machine
) -> None:
    assert resolve(EngineConfig(task="embed"), minilm_config, machine).task == "embed"
    for config, task in ((minilm_config, "generate"), (smollm2_config, "embed")):
        with pytest.raises(UnsupportedModelError, match=f"task is {task}"):
            resolve(EngineConfig(task=task), config, machine)


def test_the_plan_for_people(minilm_config: ModelConfig) -> None:
    text = render_plan("minilm", minilm_config, plan_memory(minilm_config, demand(), 1024 * MIB), None)
    assert "KV cache           0 B   an encoder keeps none" in text
    assert "longest context with 1 sequence: 512 tokens" in text
    assert "most sequences of 256 tokens in a step: 2" in text
    small = plan_memory(minilm_config, demand(), 100 * MIB)
    assert small.largest_concurrency == 0
    assert small.remedy is not None
