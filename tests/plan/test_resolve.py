"""Every automatic choice, its reason, and what happens when there is not enough memory."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from typing import Any, get_args

import pytest

from quire.checkpoint.model_config import CodelessTensors, ModelConfig
from quire.config import EngineConfig
from quire.core.quantization import Quantization
from quire.errors import InvalidRequestError, OutOfMemoryError
from quire.plan.machine import Machine
from quire.plan.resolve import check_context, resolve
from quire.plan.resolved_config import ResolvedConfig

GIVEN: dict[str, Any] = {
    "block_size": 48,
    "dtype": "float32",
    "quantization": "none",
    "packed_cache": "on",
    "backend": "cpu",
    "instruction_set": "portable",
    "max_model_len": 1024,
    "num_blocks": 100,
    "num_threads": 3,
}


def value_of(config: ResolvedConfig, knob: str) -> Any:
    """Wherever it is kept."""
    name = {"packed_cache": "keep_packed"}.get(knob, knob)
    part = next(part for part in (config, config.worker, config.kv_cache, config.scheduler) if hasattr(part, name))
    return getattr(part, name)


def reasons_about(config: ResolvedConfig, knob: str) -> list[str]:
    return [reason for reason in config.reasons if reason.startswith(f"{knob} ")]


def test_each_automatic_choice_has_one_reason(smollm2_config: ModelConfig, machine: Machine) -> None:
    config = resolve(EngineConfig(), smollm2_config, machine)
    for knob in GIVEN:
        assert len(reasons_about(config, knob)) == 1, knob
    assert len(config.reasons) == len(GIVEN)


def test_what_is_given_is_kept_and_needs_no_reason(smollm2_config: ModelConfig, machine: Machine) -> None:
    config = resolve(EngineConfig(**GIVEN), smollm2_config, machine)
    assert {name: value_of(config, name) for name in GIVEN} == GIVEN | {"packed_cache": True}
    assert config.reasons == ()


def test_a_process_has_no_more_threads_than_cpus(smollm2_config: ModelConfig, machine: Machine) -> None:
    assert resolve(EngineConfig(num_threads=16), smollm2_config, machine).worker.num_threads == machine.num_cpus == 16
    config = resolve(EngineConfig(num_threads=40_000), smollm2_config, machine)
    assert config.worker.num_threads == 16
    assert "num_threads 16, not 40000: this process may use no more CPUs." in config.reasons


def test_weights_take_what_their_form_needs(smollm2_config: ModelConfig, machine: Machine) -> None:
    needs = {
        quantization: resolve(EngineConfig(quantization=quantization), smollm2_config, machine).memory.need.weights
        for quantization in get_args(Quantization)
    }
    assert needs["none"] == smollm2_config.num_parameters() * 2
    assert needs["stored"] == smollm2_config.quantized_bytes
    assert needs["int8"] < needs["int8-g128"] < needs["int8-g64"] < needs["int8-g32"]


@pytest.mark.parametrize(
    ("asked", "quantized", "native", "expected"),
    [
        ({}, True, True, "stored"),
        ({}, False, True, "none"),
        ({}, True, False, "none"),
        ({"dtype": "bfloat16"}, True, True, "none"),
        ({"dtype": "float32"}, True, True, "none"),
        ({"backend": "torch"}, True, True, "none"),
        ({"quantization": "none"}, True, True, "none"),
        ({"quantization": "stored", "dtype": "float32"}, True, True, "stored"),
    ],
)
def test_weights_stay_as_stored_unless_floats_are_asked_for(
    smollm2_config: ModelConfig, machine: Machine, asked: Any, quantized: bool, native: bool, expected: str
) -> None:
    model = smollm2_config if quantized else replace(smollm2_config, quantized_bytes=None)
    config = resolve(EngineConfig(**asked), model, replace(machine, native_kernels=native))
    assert config.worker.quantization == expected


def test_types_without_a_kernel_are_named_with_what_they_cost(smollm2_config: ModelConfig, machine: Machine) -> None:
    q2_k = CodelessTensors(type_name="Q2_K", num_tensors=30, num_values=2**25, num_bytes=84 * 2**25 // 256)
    model = replace(smollm2_config, codeless=(q2_k,))
    line = "Tensors of type Q2_K have no kernel for few bits and become bfloat16: 30 of them, 53.5 MiB more."
    assert line in resolve(EngineConfig(), model, machine).reasons
    given = EngineConfig(**GIVEN | {"quantization": "stored", "dtype": "bfloat16"})
    assert resolve(given, model, machine).reasons == (line,)
    for quantization in ("none", "int8"):
        asked = EngineConfig(quantization=quantization)  # type: ignore[arg-type]
        assert not any("Q2_K" in reason for reason in resolve(asked, model, machine).reasons)


def test_few_bits_of_which_no_kernel_multiplies_any_become_floats(
    smollm2_config: ModelConfig, machine: Machine
) -> None:
    q2_k = CodelessTensors(type_name="Q2_K", num_tensors=30, num_values=2**25, num_bytes=84 * 2**25 // 256)
    model = replace(smollm2_config, codeless=(q2_k,), quantized_bytes=None)
    config = resolve(EngineConfig(), model, machine)
    assert (config.worker.quantization, config.worker.dtype, config.worker.keep_packed) == ("none", "bfloat16", True)
    assert reasons_about(config, "quantization") == [
        "quantization none: no kernel multiplies Q2_K; int8 and int4 round such weights while loading."
    ]
    assert config.memory.need.weights == 2 * model.num_parameters()


@pytest.mark.parametrize("quantization", ["int8", "int8-g64", "int4"])
def test_weights_that_cannot_be_rounded_are_counted(
    smollm2_config: ModelConfig, machine: Machine, quantization: Any
) -> None:
    model = replace(smollm2_config, intermediate_size=1500)
    given = EngineConfig(**GIVEN | {"quantization": quantization, "dtype": "bfloat16"})
    assert resolve(given, model, machine).reasons == (
        f"30 of 121 weights stay bfloat16 with quantization {quantization}: their inputs (1500) are no multiple of 32.",
    )
    assert resolve(given, smollm2_config, machine).reasons == ()


@pytest.mark.parametrize(
    ("asked", "lines"),
    [
        (
            {"block_size": 24},
            ("block_size 24: attention copies keys and values before it reads them; a multiple of 16 is faster.",),
        ),
        ({"block_size": 48}, ()),
        (
            {"max_num_batched_tokens": 2048},
            ("max_num_batched_tokens 2048: steps of more than 704 tokens are not recorded, they go through Python.",),
        ),
        ({"max_num_batched_tokens": 704}, ()),
        ({"max_num_batched_tokens": 2048, "enforce_eager": True}, ()),
        ({"max_num_batched_tokens": 2048, "block_size": 24, "backend": "torch", "instruction_set": "auto"}, ()),
    ],
)
def test_given_sizes_that_the_native_kernels_are_slower_with_are_said_to_be(
    smollm2_config: ModelConfig, machine: Machine, asked: dict[str, Any], lines: tuple[str, ...]
) -> None:
    config = EngineConfig(**GIVEN | {"packed_cache": "off"} | asked)
    assert resolve(config, smollm2_config, machine).reasons == lines


@pytest.mark.parametrize(("kv_cache_dtype", "block_size"), [("auto", 16), ("int8", 32)])
def test_a_block_has_the_tokens_that_attention_is_fast_with(
    smollm2_config: ModelConfig, machine: Machine, kv_cache_dtype: Any, block_size: int
) -> None:
    config = resolve(EngineConfig(kv_cache_dtype=kv_cache_dtype), smollm2_config, machine)
    assert config.kv_cache.block_size == config.memory.demand.block_size == block_size
    assert len(reasons_about(config, f"block_size {block_size}:")) == 1
    given = resolve(EngineConfig(kv_cache_dtype=kv_cache_dtype, block_size=8), smollm2_config, machine)
    assert given.kv_cache.block_size == 8


@pytest.mark.parametrize(("quantized", "backend"), [(False, "auto"), (True, "torch")])
def test_stored_bits_that_are_not_there_or_cannot_be_multiplied_are_refused(
    smollm2_config: ModelConfig, machine: Machine, quantized: bool, backend: Any
) -> None:
    model = replace(smollm2_config, quantized_bytes=97_000_000 if quantized else None)
    with pytest.raises(InvalidRequestError, match=r"not stored in few bits|backend torch has no kernels"):
        resolve(EngineConfig(quantization="stored", backend=backend), model, machine)


@pytest.mark.parametrize(
    ("asked", "quantized", "expected"),
    [
        ({"quantization": "int8"}, False, True),
        ({"quantization": "int4"}, True, True),
        ({"dtype": "bfloat16"}, True, True),
        ({"dtype": "bfloat16"}, False, False),
        ({}, True, False),
        ({"packed_cache": "on"}, True, True),
        ({"quantization": "int4", "packed_cache": "off"}, True, False),
        ({"backend": "torch"}, True, False),
    ],
)
def test_packed_weights_are_kept_where_making_them_takes_longer_than_reading_them(
    smollm2_config: ModelConfig, machine: Machine, asked: Any, quantized: bool, expected: bool
) -> None:
    model = smollm2_config if quantized else replace(smollm2_config, quantized_bytes=None)
    config = resolve(EngineConfig(**asked), model, machine)
    assert config.worker.keep_packed == expected


def test_small_models_are_packed_each_time(smollm2_config: ModelConfig, machine: Machine) -> None:
    small = replace(smollm2_config, vocab_size=1000, layers=smollm2_config.layers[:4], num_layers=4)
    assert not resolve(EngineConfig(quantization="int8"), small, machine).worker.keep_packed


def test_a_backend_without_packed_weights_keeps_none(smollm2_config: ModelConfig, machine: Machine) -> None:
    with pytest.raises(InvalidRequestError, match="choose backend cpu"):
        resolve(EngineConfig(backend="torch", packed_cache="on"), smollm2_config, machine)


def test_those_who_schedule_get_their_knobs(smollm2_config: ModelConfig, machine: Machine) -> None:
    knobs: dict[str, Any] = {
        "max_num_batched_tokens": 77,
        "max_num_seqs": 5,
        "enable_chunked_prefill": False,
        "enable_prefix_caching": False,
        "eviction_policy": "lfu",
        "num_steps_in_flight": 2,
    }
    config = resolve(EngineConfig(scheduling_policy="priority", **knobs), smollm2_config, machine)
    assert {name: value_of(config, name) for name in knobs} == knobs
    assert config.scheduler.policy == "priority"
    assert config.scheduler.max_num_seqs == config.worker.max_num_seqs == 5
    assert config.scheduler.max_model_len == config.worker.max_model_len == 8192


@pytest.mark.parametrize(("backend", "num_steps", "own"), [("cpu", 1, False), ("cpu", 2, True), ("torch", 1, True)])
def test_a_worker_has_a_thread_where_there_is_something_to_do_beside_it_or_torch_computes(
    smollm2_config: ModelConfig, machine: Machine, backend: Any, num_steps: int, own: bool
) -> None:
    asked = EngineConfig(backend=backend, num_steps_in_flight=num_steps)
    assert resolve(asked, smollm2_config, machine).worker.own_thread is own


def test_float16_is_torchs_and_the_start_says_what_is_faster(smollm2_config: ModelConfig, machine: Machine) -> None:
    config = resolve(EngineConfig(dtype="float16"), smollm2_config, machine)
    assert (config.worker.dtype, config.worker.backend) == ("float16", "torch")
    (reason,) = reasons_about(config, "backend")
    assert reason.startswith(
        "backend torch: float16 has no native kernels; choose dtype bfloat16, which is faster, or float32. Without"
    )
    with pytest.raises(
        InvalidRequestError, match=r"^backend cpu cannot be used: float16 has no native kernels; choose"
    ):
        resolve(EngineConfig(dtype="float16", backend="cpu"), smollm2_config, machine)


AVX2 = frozenset({"avx2", "fma", "bmi1", "bmi2", "f16c", "movbe", "abm"})


def test_the_kernels_choose_their_instruction_set_unless_one_is_asked_for(
    smollm2_config: ModelConfig, machine: Machine
) -> None:
    laptop = replace(machine, cpu_features=AVX2)
    config = resolve(EngineConfig(), smollm2_config, laptop)
    assert config.worker.instruction_set is None
    assert reasons_about(config, "instruction_set") == [
        "instruction_set auto: the first that works of this CPU's avx2, portable."
    ]
    newer = replace(machine, cpu_features=AVX2 | {"avx_vnni"})
    assert reasons_about(resolve(EngineConfig(), smollm2_config, newer), "instruction_set") == [
        "instruction_set auto: the first that works of this CPU's avx_vnni, avx2, portable."
    ]
    portable = resolve(EngineConfig(instruction_set="portable"), smollm2_config, laptop)
    assert portable.worker.instruction_set == "portable"
    assert resolve(EngineConfig(backend="torch"), smollm2_config, laptop).worker.instruction_set is None


def test_twice_as_many_tokens_of_int8_fit(
    smollm2_config: ModelConfig, gemma_config: ModelConfig, machine: Machine
) -> None:
    """One scale of 4 bytes beside 64 or 256 codes."""
    small = replace(machine, free_memory=7 * 2**28)
    for model, low in ((smollm2_config, 1.87), (gemma_config, 1.96)):
        asked = {"dtype": "bfloat16", "max_model_len": 2048}
        floats, codes = (
            resolve(EngineConfig(kv_cache_dtype=kv, **asked), model, small)  # type: ignore[arg-type]
            for kv in ("auto", "int8")
        )
        assert (floats.worker.kv_cache_dtype, codes.worker.kv_cache_dtype) == ("bfloat16", "int8")
        assert low < 2 * floats.kv_cache.bytes_per_block / codes.kv_cache.bytes_per_block < 2
        assert low < 2 * codes.kv_cache.num_blocks / floats.kv_cache.num_blocks < 2.02
        assert codes.memory.kv_bytes_per_token < floats.memory.kv_bytes_per_token / low


@pytest.mark.parametrize(
    ("backend", "words"),
    [
        (
            "torch",
            "kv_cache_dtype int8 cannot be used: backend torch keeps KV in the model's dtype alone; choose backend cpu,"
            " or auto.",
        ),
        (
            "reference",
            "kv_cache_dtype int8 cannot be used: backend reference keeps KV in the model's dtype alone; choose backend"
            " cpu, or auto.",
        ),
    ],
)
def test_int8_keys_and_values_are_the_native_kernels_own(
    smollm2_config: ModelConfig, machine: Machine, backend: Any, words: str
) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        resolve(EngineConfig(kv_cache_dtype="int8", backend=backend), smollm2_config, machine)
    assert str(refusal.value) == words
    assert refusal.value.field == "kv_cache_dtype"


def test_without_native_kernels_the_start_says_what_is_lost_and_how_to_get_it(
    smollm2_config: ModelConfig, machine: Machine
) -> None:
    bare = replace(machine, native_kernels=False)
    config = resolve(EngineConfig(), smollm2_config, bare)
    worker = config.worker
    assert (worker.backend, worker.quantization, worker.kv_cache_dtype) == ("torch", "none", worker.dtype)
    assert reasons_about(config, "backend") == [
        "backend torch: the native kernels were not built; install a C++20 compiler (GCC 12 or newer, or Clang), then quire"
        " again. Without native kernels everything is slower, no step is recorded, weights, keys and values stay floats"
        " (quantization and kv_cache_dtype int8 are refused), and a request's bits depend on the others in its step."
    ]
    refused: tuple[dict[str, Any], ...] = (
        {"backend": "cpu"},
        {"kv_cache_dtype": "int8"},
        *({"quantization": name} for name in get_args(Quantization) if name != "none"),
    )
    for asked in refused:
        with pytest.raises(InvalidRequestError, match="native kernels were not built; install a C"):
            resolve(EngineConfig(**asked), smollm2_config, bare)
    with pytest.raises(
        InvalidRequestError, match="int8 needs the native kernels, and float16 has no native kernels; choose"
    ):
        resolve(EngineConfig(quantization="int8", dtype="float16"), smollm2_config, machine)


def test_no_more_context_than_the_model_was_trained_for(smollm2_config: ModelConfig) -> None:
    check_context(EngineConfig(max_model_len=8192), smollm2_config)
    with pytest.raises(
        InvalidRequestError, match="max_model_len is 9000, but smollm2 was trained for 8192 tokens; lower"
    ):
        check_context(EngineConfig(max_model_len=9000), smollm2_config)


def test_groups_that_are_smaller_than_asked_for_are_told(smollm2_config: ModelConfig, machine: Machine) -> None:
    def lines(quantization: Any) -> list[str]:
        return reasons_about(resolve(EngineConfig(quantization=quantization), smollm2_config, machine), "quantization")

    assert lines("int4-g64") == lines("int8") == []
    assert lines("int4-g128") == [
        "quantization int4-g128: rows of inputs are whole groups, so groups are of 96 for 576."
    ]


@pytest.mark.parametrize(
    ("backend", "words"),
    [
        ("auto", "instruction_set avx512 cannot be used: this CPU has avx2, portable; choose one of these or auto."),
        ("torch", "instruction_set avx512 cannot be used: backend torch has no native kernels; choose backend cpu."),
    ],
)
def test_an_instruction_set_that_is_not_there_is_refused(
    smollm2_config: ModelConfig, machine: Machine, backend: Any, words: str
) -> None:
    asked = EngineConfig(instruction_set="avx512", backend=backend)
    with pytest.raises(InvalidRequestError) as refusal:
        resolve(asked, smollm2_config, replace(machine, cpu_features=AVX2))
    assert str(refusal.value) == words


@pytest.mark.parametrize(
    ("in_hardware", "kernels", "saved", "quantized", "backend", "dtype", "words"),
    [
        (True, True, "bfloat16", False, "auto", "bfloat16", "was saved in it"),
        (True, True, "float16", False, "auto", "bfloat16", "this CPU multiplies bfloat16 in hardware but not float16"),
        (True, True, "float32", False, "auto", "float32", "was saved in float32"),
        (True, True, "float32", True, "auto", "bfloat16", "this CPU multiplies it in hardware"),
        (True, True, "bfloat16", False, "reference", "float32", "bitwise reproducible"),
        (True, False, "bfloat16", False, "auto", "bfloat16", "was saved in it"),
        (False, True, "bfloat16", False, "auto", "bfloat16", "was saved in it"),
        (False, True, "float16", False, "cpu", "bfloat16", "the native kernels are fast with bfloat16 but not float16"),
        (False, True, "float32", True, "auto", "bfloat16", "the native kernels are fast with it"),
        (False, True, "bfloat16", False, "torch", "float32", "no bfloat16 instructions"),
        (False, False, "bfloat16", False, "auto", "float32", "no bfloat16 instructions"),
        (False, False, "float32", True, "auto", "float32", "no bfloat16 instructions"),
    ],
)
def test_auto_dtype(
    smollm2_config: ModelConfig,
    machine: Machine,
    in_hardware: bool,
    kernels: bool,
    saved: str,
    quantized: bool,
    backend: Any,
    dtype: str,
    words: str,
) -> None:
    model = replace(smollm2_config, torch_dtype=saved, quantized_bytes=10**8 if quantized else None)
    features = machine.cpu_features if in_hardware else frozenset({"avx512f"})
    machine = replace(machine, cpu_features=features, native_kernels=kernels)
    config = resolve(EngineConfig(backend=backend), model, machine)
    assert config.worker.dtype == dtype
    (reason,) = reasons_about(config, "dtype")
    assert reason.startswith(f"dtype {dtype}: ")
    assert words in reason


def test_without_bfloat16_instructions_it_is_taken_to_fit(smollm2_config: ModelConfig, machine: Machine) -> None:
    small = replace(machine, cpu_features=frozenset(), native_kernels=False, free_memory=2**30 + 2**28)
    config = resolve(EngineConfig(max_num_seqs=8, quantization="none"), smollm2_config, small)
    assert config.worker.dtype == "bfloat16"
    assert "float32 would be faster" in reasons_about(config, "dtype")[0]


def test_the_context_is_cut_to_fit_and_says_so(smollm2_config: ModelConfig, machine: Machine) -> None:
    whole = resolve(EngineConfig(dtype="bfloat16"), smollm2_config, machine)
    need = whole.memory.need
    small = replace(machine, free_memory=need.total - need.kv_cache // 2)
    config = resolve(EngineConfig(dtype="bfloat16", memory_utilization=1.0), smollm2_config, small)
    assert 4000 < config.worker.max_model_len < 8192
    assert config.max_concurrency >= 1
    assert "8192 do not fit" in reasons_about(config, "max_model_len")[0]


def test_a_given_context_that_does_not_fit_is_an_error_with_the_remedy(
    smollm2_config: ModelConfig, machine: Machine
) -> None:
    need = resolve(EngineConfig(dtype="bfloat16"), smollm2_config, machine).memory.need
    small = replace(machine, free_memory=need.total - need.kv_cache // 4)
    asked = EngineConfig(dtype="bfloat16", max_model_len=8192, memory_utilization=1.0, max_num_seqs=256)
    with pytest.raises(OutOfMemoryError, match=r"lower max_model_len from 8192 to \d+|lower the concurrency"):
        resolve(asked, smollm2_config, small)


def test_weights_that_do_not_fit(smollm2_config: ModelConfig, machine: Machine) -> None:
    with pytest.raises(OutOfMemoryError, match=r"weights 25\d MiB.*more memory"):
        resolve(EngineConfig(dtype="bfloat16"), smollm2_config, replace(machine, free_memory=2**27))


def test_a_share_that_is_too_small_is_named_with_the_least_that_does(
    smollm2_config: ModelConfig, machine: Machine
) -> None:
    small = replace(machine, free_memory=2**31)
    asked = EngineConfig(memory_utilization=0.02)
    with pytest.raises(OutOfMemoryError) as refusal:
        resolve(asked, smollm2_config, small)
    found = re.search(r"; raise memory_utilization to (0\.\d+), or ", str(refusal.value))
    assert found is not None
    assert resolve(replace(asked, memory_utilization=float(found[1])), smollm2_config, small).memory.fits
    with pytest.raises(OutOfMemoryError, match="raise memory_utilization"):
        resolve(replace(asked, memory_utilization=float(found[1]) - 0.01), smollm2_config, small)


def test_what_needs_no_torch_starts_where_torch_would_not(smollm2_config: ModelConfig, machine: Machine) -> None:
    small = replace(machine, free_memory=350 * 2**20)
    config = resolve(EngineConfig(), smollm2_config, small)
    assert (config.worker.backend, config.worker.quantization) == ("cpu", "stored")
    assert config.memory.fits
    assert config.worker.max_model_len >= 1024
    with pytest.raises(OutOfMemoryError, match="more memory"):
        resolve(EngineConfig(), smollm2_config, replace(small, native_kernels=False))


def test_what_loading_takes_for_a_moment_has_to_fit_too(gemma_config: ModelConfig, machine: Machine) -> None:
    asked = EngineConfig(max_model_len=128, max_num_seqs=1, memory_utilization=1.0)
    need = resolve(asked, gemma_config, machine).memory.need
    assert need.total == need.weights + need.runtime + need.loading > need.without_kv + need.kv_cache
    small = replace(machine, free_memory=need.total - 1)
    with pytest.raises(OutOfMemoryError, match=r"350 MiB to load.*; give it .* more memory"):
        resolve(asked, gemma_config, small)


def test_a_context_beyond_the_model_is_refused(smollm2_config: ModelConfig, machine: Machine) -> None:
    with pytest.raises(InvalidRequestError, match="trained for 8192"):
        resolve(EngineConfig(max_model_len=8193), smollm2_config, machine)


def test_the_cache_leaves_a_large_machine_alone(smollm2_config: ModelConfig, machine: Machine) -> None:
    config = resolve(EngineConfig(), smollm2_config, machine)
    assert config.kv_cache.num_blocks == 1 + 256 * 512 // 16
    few = resolve(EngineConfig(max_num_seqs=2), smollm2_config, machine)
    assert few.kv_cache.num_blocks == 1 + 2 * 8192 // 16, "never more than max_num_seqs whole contexts"


@pytest.mark.parametrize(
    ("max_num_seqs", "words"),
    [
        (256, "for 256 sequences of 512 tokens."),
        (2, "for 2 sequences of 8192 tokens."),
        (1, "for 1 sequence of 8192 tokens."),
    ],
)
def test_the_sequences_that_decide_on_the_cache_are_named(
    smollm2_config: ModelConfig, machine: Machine, max_num_seqs: int, words: str
) -> None:
    config = resolve(EngineConfig(max_num_seqs=max_num_seqs), smollm2_config, machine)
    (reason,) = reasons_about(config, "num_blocks")
    assert reason.endswith(words)


def test_the_cache_takes_what_is_left_on_a_small_one(smollm2_config: ModelConfig, machine: Machine) -> None:
    config = resolve(EngineConfig(), smollm2_config, replace(machine, free_memory=2 * 2**30))
    need = config.memory.need
    taken = need.total - need.kv_cache + config.kv_cache.num_blocks * config.kv_cache.bytes_per_block
    assert 0 <= int(0.8 * 2 * 2**30) - taken < config.kv_cache.bytes_per_block


def test_given_blocks_bound_the_context(smollm2_config: ModelConfig, machine: Machine) -> None:
    config = resolve(EngineConfig(num_blocks=11), smollm2_config, machine)
    assert config.worker.max_model_len == 160, "block 0 is never handed out"
    assert config.max_concurrency == 1.0


def test_given_blocks_that_hold_no_token(gemma_config: ModelConfig, machine: Machine) -> None:
    with pytest.raises(InvalidRequestError, match="at least 7"):
        resolve(EngineConfig(num_blocks=4), gemma_config, machine)


def test_given_blocks_that_do_not_fit(smollm2_config: ModelConfig, machine: Machine) -> None:
    with pytest.raises(OutOfMemoryError, match=r"num_blocks is 1000000, but .* only \d+ blocks"):
        resolve(EngineConfig(num_blocks=1_000_000), smollm2_config, machine)


def test_the_line_that_every_start_prints(smollm2_config: ModelConfig, machine: Machine) -> None:
    config = resolve(EngineConfig(num_blocks=8193, max_model_len=4096), smollm2_config, machine)
    assert config.kv_cache_line == (
        "KV cache: 8,193 blocks × 16 tokens; maximum concurrency for 4,096 tokens per request: 32.00×"
    )


def test_every_knob_can_be_resolved_by_name(smollm2_config: ModelConfig, machine: Machine) -> None:
    """A knob that is added to EngineConfig must change something here or in a part."""
    config = resolve(EngineConfig(), smollm2_config, machine)
    parts: tuple[Any, ...] = (config, config.worker, config.scheduler, config.kv_cache)
    resolved = {field.name for part in parts for field in fields(part)}
    renamed = {"scheduling_policy": "policy", "packed_cache": "keep_packed"}
    spent_elsewhere = {"memory_utilization", "seed"}
    for knob in fields(EngineConfig):
        assert renamed.get(knob.name, knob.name) in resolved | spent_elsewhere, knob.name
