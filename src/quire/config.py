"""Every knob of the engine, once: its default, its help line, its rule. The CLI makes its flags from these fields."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from quire.errors import InvalidRequestError

DType = Literal["auto", "float32", "bfloat16", "float16"]
Backend = Literal["auto", "torch", "reference"]
SchedulingPolicy = Literal["fcfs", "priority"]
EvictionPolicyName = Literal["lru", "lfu"]


def knob(default: Any, help: str, *, choices: tuple[str, ...] | None = None) -> Any:
    return field(default=default, metadata={"help": help, "choices": choices})


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What the user asked for. `None` and "auto" are resolved once, in `quire.plan.resolve`, each with its reason."""

    model: str = knob("smollm2", "built-in name, directory, .gguf file, or Hugging Face repo id[@revision]")
    dtype: DType = knob("auto", "dtype of weights, activations and KV", choices=get_args(DType))
    max_model_len: int | None = knob(
        None, "longest prompt + output in tokens (default: what the model and memory allow)"
    )
    block_size: int = knob(16, "tokens in a KV block")
    num_blocks: int | None = knob(None, "KV blocks (default: sized from free memory)")
    memory_utilization: float = knob(0.8, "share of the free memory that weights and KV cache may take")
    max_num_batched_tokens: int = knob(2048, "token budget of one step; longer prompts are computed in chunks")
    max_num_seqs: int = knob(256, "sequences that run at once")
    scheduling_policy: SchedulingPolicy = knob("fcfs", "order of the waiting", choices=get_args(SchedulingPolicy))
    enable_prefix_caching: bool = knob(True, "reuse the KV of shared prefixes")
    eviction_policy: EvictionPolicyName = knob(
        "lru", "which cached block goes first", choices=get_args(EvictionPolicyName)
    )
    enable_chunked_prefill: bool = knob(True, "split long prompts over steps so that decodes never wait for them")
    backend: Backend = knob(
        "auto", "kernels and attention: torch is fast, reference is bitwise reproducible", choices=get_args(Backend)
    )
    num_steps_in_flight: int = knob(
        1, "steps planned before the first one's result is read (2 overlaps control with compute)"
    )
    num_threads: int | None = knob(None, "compute threads (default: the cores this process may use)")
    seed: int | None = knob(None, "seed for requests that bring none (default: drawn at random)")

    def __post_init__(self) -> None:
        for name, low in (
            ("block_size", 1),
            ("max_num_batched_tokens", 1),
            ("max_num_seqs", 1),
            ("num_steps_in_flight", 1),
            ("num_blocks", 2),
            ("max_model_len", 1),
            ("num_threads", 1),
        ):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < low):
                raise InvalidRequestError(
                    f"{name} must be a whole number >= {low}, got {value!r}.", field=name, value=value
                )
        if not 0.0 < self.memory_utilization <= 1.0:
            raise InvalidRequestError(
                f"memory_utilization must be in (0, 1], got {self.memory_utilization!r}.",
                field="memory_utilization",
                value=self.memory_utilization,
            )
        for knob_field in fields(self):
            choices = knob_field.metadata["choices"]
            value = getattr(self, knob_field.name)
            if choices and value not in choices:
                raise InvalidRequestError(
                    f"{knob_field.name} must be one of {', '.join(choices)}, got {value!r}.",
                    field=knob_field.name,
                    value=value,
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """The part of the resolved configuration the scheduler reads."""

    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 256
    max_model_len: int = 8192
    policy: SchedulingPolicy = "fcfs"
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = True
    eviction_policy: EvictionPolicyName = "lru"
    num_steps_in_flight: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """What a worker needs to load its model; plain data, so that it can cross a process border."""

    model: str
    dtype: Literal["float32", "bfloat16", "float16"]
    backend: Literal["torch", "reference"]
    num_threads: int
    max_num_seqs: int
    max_model_len: int
