"""Flags are made from EngineConfig: every knob can be given, reaches its field, and keeps its default otherwise."""

from __future__ import annotations

import argparse
from dataclasses import asdict, fields
from typing import Any

import pytest

from quire.cli.engine_flags import add_engine_flags, engine_arguments
from quire.config import EngineConfig

EXAMPLES: dict[str, tuple[list[str], Any]] = {
    "model": (["--model", "dir"], "dir"),
    "task": (["--task", "embed"], "embed"),
    "dtype": (["--dtype", "bfloat16"], "bfloat16"),
    "max_model_len": (["--max-model-len", "99"], 99),
    "block_size": (["--block-size", "8"], 8),
    "quantization": (["--quantization", "stored"], "stored"),
    "packed_cache": (["--packed-cache", "off"], "off"),
    "kv_cache_dtype": (["--kv-cache-dtype", "int8"], "int8"),
    "preallocate_kv_cache": (["--preallocate-kv-cache"], True),
    "enforce_eager": (["--enforce-eager"], True),
    "num_blocks": (["--num-blocks", "50"], 50),
    "memory_utilization": (["--memory-utilization", "0.5"], 0.5),
    "max_num_batched_tokens": (["--max-num-batched-tokens", "64"], 64),
    "max_num_seqs": (["--max-num-seqs", "3"], 3),
    "scheduling_policy": (["--scheduling-policy", "priority"], "priority"),
    "enable_prefix_caching": (["--no-enable-prefix-caching"], False),
    "eviction_policy": (["--eviction-policy", "lfu"], "lfu"),
    "enable_chunked_prefill": (["--no-enable-chunked-prefill"], False),
    "backend": (["--backend", "reference"], "reference"),
    "instruction_set": (["--instruction-set", "avx2"], "avx2"),
    "num_steps_in_flight": (["--num-steps-in-flight", "2"], 2),
    "num_threads": (["--num-threads", "1"], 1),
    "seed": (["--seed", "5"], 5),
}
ALL = tuple(knob.name for knob in fields(EngineConfig))


@pytest.fixture
def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_engine_flags(parser, ALL)
    return parser


@pytest.mark.parametrize("name", ALL)
def test_every_knob_has_a_flag(parser: argparse.ArgumentParser, name: str) -> None:
    flags, value = EXAMPLES[name]
    arguments = engine_arguments(parser.parse_args(flags))
    assert arguments == {name: value}
    assert getattr(EngineConfig(**arguments), name) == value


def test_without_flags_everything_keeps_its_default(parser: argparse.ArgumentParser) -> None:
    arguments = engine_arguments(parser.parse_args([]))
    assert asdict(EngineConfig(**arguments)) == asdict(EngineConfig())


def test_a_value_that_is_no_choice_is_refused(parser: argparse.ArgumentParser) -> None:
    with pytest.raises(argparse.ArgumentError, match="bfloat16"):
        parser.parse_args(["--dtype", "int3"])


def test_only_the_asked_for_flags_exist() -> None:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_engine_flags(parser, ("dtype",))
    parser.add_argument("--seed", type=int)
    arguments = parser.parse_args(["--dtype", "float32", "--seed", "3"])
    assert engine_arguments(arguments) == {"dtype": "float32"}, "another flag of a knob's name is not the engine's"


def test_the_help_has_every_knobs_line(parser: argparse.ArgumentParser) -> None:
    words = " ".join(parser.format_help().split())
    for knob in fields(EngineConfig):
        assert " ".join(knob.metadata["help"].split()) in words
