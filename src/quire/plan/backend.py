"""Which kernels run, and whether they multiply the checkpoint's own bits."""

from __future__ import annotations

from quire.checkpoint.model_config import ModelConfig
from quire.config import MAX_RECORDED_TOKENS, EngineConfig, ResolvedDType
from quire.core.backend import Backend
from quire.core.native import KEYS_PER_PANEL, MAX_HEADS_PER_KV_HEAD, instruction_sets
from quire.core.quantization import ROUNDINGS, Quantization
from quire.errors import InvalidRequestError
from quire.plan.machine import Machine

WITHOUT_NATIVE = (
    "Without native kernels everything is slower, no step is recorded, weights, keys and values stay floats"
    " (quantization and kv_cache_dtype int8 are refused), and a request's bits depend on the others in its step."
)
"""What a start says that has to do without."""

DEFAULTS = EngineConfig()
OF_KV_BLOCKS = ("block_size", "num_blocks", "preallocate_kv_cache", "enable_prefix_caching", "eviction_policy")

FEW_PARAMETERS = 30_000_000
"""Fewer are converted within the time that a start takes anyway."""


def choose_backend(
    config: EngineConfig, model: ModelConfig, machine: Machine, dtype: ResolvedDType
) -> tuple[Backend, str | None]:
    """`cpu` where its kernels were built, for models of the dtypes they have; `torch` elsewhere.

    With the reason, where it was not given. Raises InvalidRequestError for a `cpu` that cannot be, and for what only it
    can do.
    """
    lacking = _native_lack(model, machine, dtype)
    if config.backend == "cpu" and lacking is not None:
        raise _unusable("backend", "cpu", lacking)
    if config.backend != "auto":
        return config.backend, None
    if lacking is None:
        return "cpu", "backend cpu: the native kernels, which are the fastest."
    knob = _asks_for_native(config)
    if knob is not None:
        value = getattr(config, knob)
        raise InvalidRequestError(f"{knob} {value} needs the native kernels, and {lacking}.", field=knob, value=value)
    return "torch", f"backend torch: {lacking}. {WITHOUT_NATIVE}"


def _asks_for_native(config: EngineConfig) -> str | None:
    """A knob whose value no other kernels know."""
    asked = {
        "quantization": config.quantization not in ("auto", "none"),
        "kv_cache_dtype": config.kv_cache_dtype != "auto",
        "instruction_set": config.instruction_set != "auto",
        "packed_cache": config.packed_cache == "on",
    }
    return next((knob for knob, asks in asked.items() if asks), None)


def runs_native(config: EngineConfig, model: ModelConfig, machine: Machine) -> bool:
    """Whether the native kernels will run, in a dtype that they have."""
    return config.backend in ("auto", "cpu") and _native_lack(model, machine, "bfloat16") is None


def choose_instruction_set(config: EngineConfig, machine: Machine, backend: Backend) -> tuple[str | None, str | None]:
    """What the native kernels are to compute with; None, with the reason, where they choose for themselves.

    A set that the CPU has may still not be for this process to use: the system has to grant tiles (csrc/amx.cpp).
    Raises InvalidRequestError for one that the CPU or the backend lacks.
    """
    asked, available = config.instruction_set, instruction_sets(machine.cpu_features)
    if asked == "auto":
        if backend != "cpu":
            return None, None
        return None, f"instruction_set auto: the first that works of this CPU's {', '.join(available)}."
    if backend != "cpu":
        raise _unusable("instruction_set", asked, f"backend {backend} has no native kernels; choose backend cpu")
    if asked not in available:
        raise _unusable("instruction_set", asked, f"this CPU has {', '.join(available)}; choose one of these or auto")
    return asked, None


def choose_quantization(config: EngineConfig, model: ModelConfig, machine: Machine) -> tuple[Quantization, str | None]:
    """Weights as stored where that is in few bits and the native kernels run, with the reason; as asked, if so."""
    if config.quantization != "auto":
        return config.quantization, None
    if not model.saved_in_few_bits or config.dtype != "auto" or not runs_native(config, model, machine):
        return "none", None
    if model.quantized_bytes is None:
        names = ", ".join(stored.type_name for stored in model.codeless)
        return (
            "none",
            f"quantization none: no kernel multiplies {names}; int8 and int4 round such weights while loading.",
        )
    return "stored", "quantization stored: the checkpoint's own few bits, multiplied as they are."


def check_quantization(config: EngineConfig, quantization: Quantization, model: ModelConfig, backend: Backend) -> None:
    """Raises InvalidRequestError where weights are to be kept as stored and cannot be."""
    if quantization == "none":
        return
    if quantization == "stored" and model.quantized_bytes is None:
        raise _unusable(
            "quantization",
            quantization,
            f"{config.model} is not stored in few bits that a kernel multiplies; int8 and int4 round it while loading",
        )
    if backend != "cpu":
        lacking = f"backend {backend} has no kernels for weights of few bits; choose backend cpu"
        raise _unusable("quantization", quantization, lacking)


def what_given_sizes_cost(config: EngineConfig, model: ModelConfig, backend: Backend) -> list[str]:
    """A line for each that keeps the native kernels from their fastest way, or that an encoder has no use for."""
    if model.is_encoder:
        idle = [knob for knob in OF_KV_BLOCKS if getattr(config, knob) != getattr(DEFAULTS, knob)]
        return [f"{', '.join(idle)}: an encoder keeps no keys and values, so this changes nothing."] if idle else []
    if backend != "cpu":
        return []
    costs = []
    if config.block_size is not None and config.block_size % KEYS_PER_PANEL:
        costs.append(
            f"block_size {config.block_size}: attention copies keys and values before it reads them; a multiple of"
            f" {KEYS_PER_PANEL} is faster."
        )
    if config.max_num_batched_tokens > MAX_RECORDED_TOKENS and not config.enforce_eager:
        costs.append(
            f"max_num_batched_tokens {config.max_num_batched_tokens}: steps of more than {MAX_RECORDED_TOKENS} tokens"
            " are not recorded, they go through Python."
        )
    return costs


def choose_block_size(config: EngineConfig, model: ModelConfig) -> tuple[int, str | None]:
    """The least that attention is fast with, and the reason, where it was not given and there is KV at all."""
    if config.block_size is not None:
        return config.block_size, None
    codes = config.kv_cache_dtype == "int8"
    block_size = 2 * KEYS_PER_PANEL if codes else KEYS_PER_PANEL
    if model.is_encoder:
        return block_size, None
    fast = "keys of 8 bits are read faster by so many; " if codes else ""
    return block_size, f"block_size {block_size}: {fast}a cached prefix ends at a multiple of it."


def choose_packed_cache(
    config: EngineConfig, model: ModelConfig, quantization: Quantization, backend: Backend
) -> tuple[bool, str | None]:
    """Whether packed weights are kept: where making them takes longer than reading, with the reason; as asked, if so.

    Raises InvalidRequestError for a cache of a backend that packs nothing.
    """
    if config.packed_cache == "on" and backend != "cpu":
        raise _unusable("packed_cache", "on", f"backend {backend} packs no weights; choose backend cpu")
    if config.packed_cache != "auto":
        return config.packed_cache == "on", None
    if backend != "cpu":
        return False, f"packed_cache off: backend {backend} packs no weights."
    if model.num_parameters() < FEW_PARAMETERS:
        return False, "packed_cache off: so few weights are converted in no time."
    if quantization in ROUNDINGS:
        return True, f"packed_cache on: rounding to {quantization} takes longer than reading what it made."
    if quantization == "none" and model.saved_in_few_bits:
        return True, "packed_cache on: making floats of the checkpoint's few bits takes longer than reading them."
    return False, "packed_cache off: packing these weights takes hardly longer than reading them packed."


def check_kv_cache_dtype(config: EngineConfig, model: ModelConfig, backend: Backend) -> None:
    """Raises InvalidRequestError where keys and values are to be codes and cannot be."""
    if config.kv_cache_dtype == "auto":
        return
    if model.is_encoder:
        lacking = f"{config.model} is an encoder and keeps no KV; leave it out"
        raise _unusable("kv_cache_dtype", config.kv_cache_dtype, lacking)
    if backend != "cpu":
        lacking = f"backend {backend} keeps KV in the model's dtype alone; choose backend cpu, or auto"
        raise _unusable("kv_cache_dtype", config.kv_cache_dtype, lacking)


def _unusable(knob: str, value: str, lacking: str) -> InvalidRequestError:
    return InvalidRequestError(f"{knob} {value} cannot be used: {lacking}.", field=knob, value=value)


def _native_lack(model: ModelConfig, machine: Machine, dtype: ResolvedDType) -> str | None:
    if not machine.native_kernels:
        return (
            "the native kernels were not built; install a C++20 compiler (GCC 12 or newer, or Clang), then quire again"
        )
    if model.num_heads > MAX_HEADS_PER_KV_HEAD * model.num_kv_heads:
        return f"native attention takes at most {MAX_HEADS_PER_KV_HEAD} query heads a KV head"
    if dtype == "float16":
        return "float16 has no native kernels; choose dtype bfloat16, which is faster, or float32"
    return None
