"""Every knob of the engine, once: its default, its help line, its rule. The CLI makes its flags from these fields."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from quire.core.backend import Backend, BackendChoice
from quire.core.kv_layout import KVCacheDType, KVCacheDTypeChoice
from quire.core.native import INSTRUCTION_SETS
from quire.core.quantization import Quantization, QuantizationChoice
from quire.errors import InvalidRequestError

Task = Literal["generate", "embed"]
DType = Literal["auto", "float32", "bfloat16", "float16"]
ResolvedDType = Literal["float32", "bfloat16", "float16"]
PackedCache = Literal["auto", "on", "off"]
SchedulingPolicy = Literal["fcfs", "priority", "fair"]
EvictionPolicyName = Literal["lru", "lfu"]

MAX_PORT = 65535
OFFLINE_BATCHED_TOKENS = 704
"""Of `LLM`, whose answers come all at the end: prompts are 4 % faster than with 512 tokens a step, and whoever decodes beside them is
kept a third longer (docs/lab.md)."""
MAX_RECORDED_TOKENS = OFFLINE_BATCHED_TOKENS
"""Of a step that runs as a recorded program. In larger ones the operators take so long that Python beside them does not matter."""


def knob(default: Any, help: str, *, choices: tuple[str, ...] | None = None, at_least: int | None = None) -> Any:
    """`at_least`: of a whole number; None passes too, where it stands for a default."""
    return field(default=default, metadata={"help": help, "choices": choices, "at_least": at_least})


LARGEST_NUMBER = 10**18
"""Which still fits into 64 bits."""
_KINDS: dict[type, tuple[tuple[type, ...], str]] = {
    bool: ((bool,), "true or false"),
    str: ((str,), "text"),
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
}
"""By a default's type: what a knob's value may be. 'no' would count as true otherwise."""


def check_knobs(config: Any) -> None:
    """Raises InvalidRequestError for a knob of `config` with a value that is not of its kind, too small or too large, or none of its choices."""
    for knob_field in fields(config):
        name, value, default = knob_field.name, getattr(config, knob_field.name), knob_field.default
        low, choices = knob_field.metadata["at_least"], knob_field.metadata["choices"]
        if isinstance(default, tuple):
            if not isinstance(value, tuple) or not all(isinstance(text, str) for text in value):
                # The value may be a key, which belongs into no log.
                raise InvalidRequestError(f"{name} must be a tuple of texts.", field=name)
        elif low is not None and value is not None:
            if isinstance(value, bool) or not isinstance(value, int) or value < low:
                raise _refused(name, value, f"a whole number >= {low}")
            if value > LARGEST_NUMBER:
                raise InvalidRequestError(
                    f"{name} must be at most {LARGEST_NUMBER}; choose a smaller number.", field=name
                )
        elif type(default) in _KINDS:
            kinds, wanted = _KINDS[type(default)]
            if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
                raise _refused(name, value, wanted)
        if choices and value not in choices:
            raise _refused(name, value, f"one of {', '.join(choices)}")


def _refused(name: str, value: object, wanted: str) -> InvalidRequestError:
    return InvalidRequestError(f"{name} must be {wanted}, got {value!r}.", field=name, value=value)


MODEL_HELP = "built-in name, directory, .gguf file, or Hugging Face repo id[@revision] (default: smollm2)"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What the user asked for. `None` and "auto" are resolved once, in `quire.plan.resolve`, each with its reason.

    A path given as `model` becomes its text.
    """

    model: str = knob("smollm2", MODEL_HELP)
    task: Task | Literal["auto"] = knob(
        "auto",
        "generate continues texts, embed makes vectors of them (auto: what the model was made for)",
        choices=("auto", *get_args(Task)),
    )
    dtype: DType = knob("auto", "dtype of weights, activations and KV", choices=get_args(DType))
    quantization: QuantizationChoice = knob(
        "auto",
        "weights as floats of the dtype (none), in the few bits a GGUF file has them in (stored), or rounded while loading"
        " (int8: a scale for each output, int4: for each 32 inputs; -g64: for groups of 64): less memory, faster; auto: stored"
        " where it can be, unless a dtype is asked for",
        choices=get_args(QuantizationChoice),
    )
    kv_cache_dtype: KVCacheDTypeChoice = knob(
        "auto",
        "what keys and values are kept in: the model's dtype (auto), or codes of 8 bits (int8), of which almost twice as many fit",
        choices=get_args(KVCacheDTypeChoice),
    )
    max_model_len: int | None = knob(
        None, "longest prompt + output in tokens (default: what the model and memory allow)", at_least=1
    )
    block_size: int | None = knob(None, "tokens in a KV block (default: 16, with an int8 KV cache 32)", at_least=1)
    num_blocks: int | None = knob(None, "KV blocks (default: sized from free memory)", at_least=2)
    preallocate_kv_cache: bool = knob(
        False,
        "take the memory of all KV blocks at the start, not as they are first used, and large pages for what steps compute: a"
        " slower start, and no request waits for the system to find memory",
    )
    memory_utilization: float = knob(0.8, "share of the free memory that the process may take in all")
    max_num_batched_tokens: int = knob(
        512,
        "token budget of one step; longer prompts are computed in chunks (default: 512, of LLM 704)",
        at_least=1,
    )
    max_num_seqs: int = knob(256, "sequences that run at once", at_least=1)
    scheduling_policy: SchedulingPolicy = knob(
        "fcfs",
        "who goes first: by arrival (fcfs), by the requests' priority (priority), or in fair shares of tokens among clients (fair)",
        choices=get_args(SchedulingPolicy),
    )
    enable_prefix_caching: bool = knob(True, "reuse the KV of shared prefixes")
    eviction_policy: EvictionPolicyName = knob(
        "lru",
        "which cached block is evicted first: the one unused for longest (lru), or the one found least often (lfu)",
        choices=get_args(EvictionPolicyName),
    )
    enable_chunked_prefill: bool = knob(True, "split long prompts over steps so that decodes never wait for them")
    packed_cache: PackedCache = knob(
        "auto",
        "keep weights on disk as the kernels read them, under QUIRE_CACHE, so that the next start need not convert them"
        " (auto: where converting takes longer than reading)",
        choices=get_args(PackedCache),
    )
    enforce_eager: bool = knob(False, "every step goes through Python: nothing is recorded and run as a program")
    backend: BackendChoice = knob(
        "auto",
        "kernels and attention: cpu is native and the fastest, torch needs no compiler, reference is plain and slow",
        choices=get_args(BackendChoice),
    )
    instruction_set: str = knob(
        "auto",
        "the CPU instructions that the native kernels use (auto: the fastest set that this CPU has)",
        choices=("auto", *INSTRUCTION_SETS),
    )
    num_steps_in_flight: int = knob(
        1, "steps planned before the first one's result is read (2 overlaps control with compute)", at_least=1
    )
    num_threads: int | None = knob(
        None, "compute threads (default: the physical cores this process may use)", at_least=1
    )
    seed: int | None = knob(None, "seed for requests that bring none (default: drawn at random)", at_least=0)

    def __post_init__(self) -> None:
        if isinstance(self.model, os.PathLike):
            object.__setattr__(self, "model", os.fspath(self.model))
        check_knobs(self)
        if not 0.0 < self.memory_utilization <= 1.0:
            raise _refused("memory_utilization", self.memory_utilization, "in (0, 1]")


def engine_config(**knobs: Any) -> EngineConfig:
    """Of keyword arguments, as `LLM` and `AsyncLLM` take them. Raises TypeError, as Python does, for one that is no field, with the field
    that is spelled most like it."""
    names = [knob_field.name for knob_field in fields(EngineConfig)]
    for name in knobs:
        if name not in names:
            import difflib  # Of use here alone.

            alike = difflib.get_close_matches(name, names, n=1)
            meant = f"did you mean {alike[0]}?" if alike else "leave it out."
            raise TypeError(f"{name} is no argument of LLM or AsyncLLM: they take the fields of EngineConfig; {meant}")
    return EngineConfig(**knobs)


LogFormat = Literal["text", "json"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """What `quire serve` takes beside the engine's knobs. Times are seconds, sizes bytes."""

    host: str = knob("127.0.0.1", "address to listen on; 0.0.0.0 is every network this machine is on")
    port: int = knob(8000, "port to listen on; 0 takes a free one", at_least=0)
    served_model_name: str | None = knob(None, "the model's name in the API (default: the model reference)")
    api_workers: int = knob(1, "API processes in front of the engine", at_least=1)
    api_key: tuple[str, ...] = knob((), "a key that clients must send; repeat for several (or QUIRE_API_KEY)")
    allowed_host: tuple[str, ...] = knob(
        (), "a Host header to accept beside this machine's own names (*: any); repeatable"
    )
    allowed_origin: tuple[str, ...] = knob((), "a web origin whose pages may call the API (CORS; *: any); repeatable")
    enable_management: bool = knob(False, "serve POST /reset_prefix_cache (needs an API key)")
    trust_request_chat_template: bool = knob(False, "let requests bring their own chat template")
    chat_template: str | None = knob(None, "a file with the chat template to use instead of the model's own")
    tool_call_parser: str = knob(
        "auto",
        "how tool calls are written: none, deepseek_v3_1, deepseek, mistral_args, mistral, hermes, pythonic or llama3_json"
        " (auto: as the chat template shows)",
    )
    reasoning_parser: str = knob(
        "auto", "how reasoning is marked: none, think, command_a, magistral or seed (auto: as the chat template shows)"
    )
    max_queued_requests: int = knob(
        1024, "with so many unfinished requests an API process answers further ones with 429", at_least=1
    )
    max_client_requests: int = knob(256, "the same for one client (API key, or address)", at_least=1)
    max_body_size: int = knob(16 * 2**20, "largest request body in bytes; larger ones get 413", at_least=1024)
    queue_timeout: float | None = knob(
        None, "seconds a request may wait for its first token, or vector, before it fails with 503"
    )
    request_timeout: float | None = knob(None, "seconds a request may take in all")
    reader_timeout: float = knob(30.0, "seconds a client may leave its stream unread before its request is aborted")
    drain_timeout: float = knob(30.0, "seconds that running requests get to finish after SIGTERM")
    metrics_namespace: str = knob("quire", "prefix of the Prometheus metrics (vllm: dashboards made for vLLM work)")
    otlp_endpoint: str | None = knob(None, "send OpenTelemetry traces there, such as http://127.0.0.1:4318")
    log_format: LogFormat = knob("text", "format of what the API processes log", choices=get_args(LogFormat))

    def __post_init__(self) -> None:
        check_knobs(self)
        if not self.host:
            raise InvalidRequestError(
                "host is empty; name an address to listen on, such as 127.0.0.1, or 0.0.0.0 for every network.",
                field="host",
                value=self.host,
            )
        if self.served_model_name == "":
            raise InvalidRequestError(
                "served_model_name is empty; give the model a name, or leave it out.",
                field="served_model_name",
                value="",
            )
        if self.port > MAX_PORT:
            raise _refused("port", self.port, f"at most {MAX_PORT}")
        for name in ("queue_timeout", "request_timeout", "reader_timeout", "drain_timeout"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int | float) and 0.0 <= value < float("inf")):
                raise _refused(name, value, "seconds >= 0")
        if not re.fullmatch(r"[a-zA-Z_]\w*", self.metrics_namespace, re.ASCII):
            raise _refused("metrics_namespace", self.metrics_namespace, "a word of letters, digits and _")
        for host in self.allowed_host:
            if not re.fullmatch(r"[^/\s]+", host):
                raise _refused("allowed_host", host, "a name such as llm.example")
        for origin in self.allowed_origin:
            # As browsers send it: one with a path would never be met.
            if not re.fullmatch(r"\*|null|[\w+.-]+://[^/\s]+", origin):
                raise _refused("allowed_origin", origin, "* or an origin such as https://app.example")
        for key in self.api_key:
            if not (key.isascii() and key.isprintable() and key.strip() == key != ""):
                # The key itself belongs into no log.
                raise InvalidRequestError(
                    "An api_key must be printable ASCII with no space at its ends, and not empty; choose another.",
                    field="api_key",
                )
        if self.enable_management and not self.api_key:
            raise InvalidRequestError(
                "enable_management needs an api_key: whoever reaches the port could empty the prefix cache otherwise.",
                field="enable_management",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """What a Scheduler or an EncodeScheduler goes by."""

    max_num_batched_tokens: int = 512
    max_num_seqs: int = 256
    max_model_len: int = 8192
    policy: SchedulingPolicy = "fcfs"
    enable_chunked_prefill: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """What a worker needs to load its model; plain data, so that it can cross a process border."""

    model: str
    dtype: ResolvedDType
    quantization: Quantization = "none"
    kv_cache_dtype: KVCacheDType
    preallocate_kv_cache: bool = False
    keep_packed: bool = False
    """Linear weights are read from quire's cache where they are there, and put there where they are not."""
    enforce_eager: bool = False
    backend: Backend
    instruction_set: str | None = None
    """Of the native kernels; None: the fastest that works."""
    num_threads: int
    own_thread: bool = True
    """Computes on a thread of its own, not on the one that waits for its results."""
    max_num_seqs: int
    max_model_len: int

    @property
    def records_steps(self) -> bool:
        """Whether steps run as programs of native kernels, without Python."""
        return self.backend == "cpu" and not self.enforce_eager
