"""Shared by all tests: hypothesis profiles, small real checkpoints made by transformers, and configs of real models."""

from __future__ import annotations

import logging
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from quire.checkpoint.model_config import LayerConfig, ModelConfig, RopeConfig
from quire.kernels import native_module

os.environ.setdefault("HF_HUB_OFFLINE", "1")
# A script that runs the tests in the background makes them, and the programs they start, ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Threads that wait must not spin: tests often share their machine.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

settings.register_profile("default", deadline=None, max_examples=50, suppress_health_check=list(HealthCheck))
settings.register_profile("nightly", deadline=None, max_examples=2000, suppress_health_check=list(HealthCheck))
settings.load_profile("default")

NUM_THREADS = native_module.thread_count()


@pytest.fixture(autouse=True)
def what_this_thread_computes_with() -> Iterator[None]:
    """The same for each test: an LLM's steps leave its instruction set and threads to the thread that asked for them."""
    yield
    native_module.use_instruction_set(None)
    native_module.use_num_threads(NUM_THREADS)


@pytest.fixture(autouse=True)
def how_much_is_logged() -> Iterator[None]:
    """The same for each test: `main` sets it for the whole process and, with --quiet, for programs that are started later."""
    ours, hubs = logging.getLogger("quire"), logging.getLogger("huggingface_hub")
    level, propagate, verbosity = ours.level, hubs.propagate, os.environ.get("HF_HUB_VERBOSITY")
    yield
    ours.setLevel(level)
    hubs.propagate = propagate
    if verbosity is None:
        os.environ.pop("HF_HUB_VERBOSITY", None)


@pytest.fixture
def reserved_port() -> Iterator[int]:
    """One that is free until a server of the test binds it: nobody else gets it meanwhile, and who connects is refused."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random two-layer Llama with a byte-level tokenizer and a chat template, as transformers saves it."""
    from tests.tiny_models import save_tiny_llama

    return save_tiny_llama(tmp_path_factory.mktemp("tiny-llama"))


@pytest.fixture(scope="session")
def tiny_gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random six-layer Gemma 3 with a window of 24 tokens in five of its layers."""
    from tests.tiny_models import save_tiny_gemma

    return save_tiny_gemma(tmp_path_factory.mktemp("tiny-gemma"))


@pytest.fixture(scope="session")
def tiny_gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.tiny_models import save_tiny_gpt2

    return save_tiny_gpt2(tmp_path_factory.mktemp("tiny-gpt2"))


@pytest.fixture(scope="session")
def tiny_opt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.tiny_models import save_tiny_opt

    return save_tiny_opt(tmp_path_factory.mktemp("tiny-opt"))


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random three-layer BERT with a WordPiece tokenizer, made for texts of 40 tokens (it has 48 positions)."""
    from tests.tiny_models import save_sentence_transformer, save_tiny_bert

    directory = tmp_path_factory.mktemp("tiny-bert")
    save_tiny_bert(directory)
    save_sentence_transformer(directory, mode="mean_tokens", normalize=True, max_tokens=40)
    return directory


@pytest.fixture(scope="session")
def minilm() -> str:
    """The real all-MiniLM-L6-v2, fetched once."""
    from quire.checkpoint.pull import pull

    pull("minilm")
    return "minilm"


@pytest.fixture(scope="session")
def smollm2() -> str:
    """The real SmolLM2, fetched once."""
    from quire.checkpoint.pull import pull

    pull("smollm2")
    return "smollm2"


@pytest.fixture(scope="session")
def gemma3() -> str:
    """The real Gemma 3 270M, fetched once."""
    from quire.checkpoint.pull import pull

    pull("gemma3-270m")
    return "gemma3-270m"


@pytest.fixture
def smollm2_config() -> ModelConfig:
    """The built-in model's config, written out: neither a file nor a network is needed."""
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
        quantized_bytes=246_587_904,
    )
