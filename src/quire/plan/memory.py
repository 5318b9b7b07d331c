"""What a model needs of memory, and what fits. A pure function of the config: no weights are read, nothing is measured.

Letters in the formulas: T tokens and R sampling rows of one step, D hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from quire.checkpoint.model_config import ModelConfig
from quire.config import ResolvedDType
from quire.core.kv_layout import (
    BYTES_PER_ELEMENT,
    KVCacheDType,
    KVCacheDTypeChoice,
    bytes_per_block,
    group_layers,
    num_blocks_per_sequence,
)
from quire.core.quantization import Quantization
from quire.plan.activations import activation_bytes
from quire.plan.native_activations import native_activation_bytes
from quire.plan.sizes import MIB, format_size
from quire.plan.weights import weight_bytes

TORCH_RUNTIME_BYTES = 268 * MIB
"""Python, torch, their code pages and quire's own modules, resident after a step of a tiny model (docs/lab.md)."""

NATIVE_RUNTIME_BYTES = 62 * MIB
"""The same without torch, which the native kernels do not need."""

TOKENIZER_BYTES_PER_TOKEN = 320
"""The tokenizer's tables, for each token of the vocabulary (docs/lab.md)."""

LOADING_BYTES_PER_TOKEN = 1400
"""What making the tokenizer takes beside the weights, for each token of a large vocabulary (docs/lab.md)."""

SHORTEST_CONTEXT = 128
"""A shorter context is not worth proposing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What is asked for. `concurrency` sequences of `max_model_len` tokens have their KV in memory;
    up to `max_num_seqs` sequences (of any length) sample in one step."""

    dtype: ResolvedDType
    max_model_len: int
    native: bool = False
    """Whether the native kernels compute, without torch."""
    quantization: Quantization = "none"
    kv_cache_dtype: KVCacheDTypeChoice = "auto"
    concurrency: int = 1
    max_num_seqs: int = 256
    block_size: int = 16
    max_num_batched_tokens: int = 512
    enable_chunked_prefill: bool = True

    @property
    def resolved_kv_cache_dtype(self) -> KVCacheDType:
        return self.dtype if self.kv_cache_dtype == "auto" else self.kv_cache_dtype

    @property
    def num_step_tokens(self) -> int:
        """The most tokens of one step: a prompt that may not be cut is computed whole, budget or not."""
        longest = 1 if self.enable_chunked_prefill else self.max_model_len
        return max(self.max_num_batched_tokens, longest)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeed:
    """Bytes. `loading` is given back before there are KV and activations."""

    weights: int
    kv_cache: int
    activations: int
    runtime: int
    loading: int

    @property
    def total(self) -> int:
        return max(self.weights + self.runtime + self.loading, self.without_kv + self.kv_cache)

    @property
    def without_kv(self) -> int:
        """Once it is loaded."""
        return self.weights + self.runtime + self.activations


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Sizes in bytes. `largest_context` is what fits with the demanded concurrency and `largest_concurrency` what
    fits with the demanded context; 0 where not even the smallest does. `remedy` is None when the demand fits."""

    demand: Demand
    budget: int
    need: MemoryNeed
    kv_bytes_per_token: int
    """While no layer has dropped any: sliding-window layers stop growing at their window."""
    kv_bytes_per_sequence: int
    """Of one sequence of `max_model_len` tokens between steps."""
    largest_context: int
    largest_concurrency: int
    remedy: str | None

    @property
    def fits(self) -> bool:
        return self.need.total <= self.budget


def plan_memory(model: ModelConfig, demand: Demand, budget: int) -> MemoryPlan:
    """What `demand` needs of `budget` bytes, what would fit, and the one change that would make it fit."""
    need = memory_need(model, demand)
    groups = group_layers(model.kv_specs())
    block = block_bytes(model, demand)
    return MemoryPlan(
        demand=demand,
        budget=budget,
        need=need,
        kv_bytes_per_token=len(groups) * block // demand.block_size,
        kv_bytes_per_sequence=block * num_blocks_per_sequence(groups, demand.block_size, demand.max_model_len),
        largest_context=largest_context(model, demand, budget),
        largest_concurrency=_largest_concurrency(model, demand, budget),
        remedy=None if need.total <= budget else next(_remedies(model, demand, budget)),
    )


def memory_need(model: ModelConfig, demand: Demand) -> MemoryNeed:
    """Bytes of each part at its peak."""
    runtime = NATIVE_RUNTIME_BYTES if demand.native else TORCH_RUNTIME_BYTES
    return MemoryNeed(
        weights=weight_bytes(model, demand.quantization, demand.dtype),
        kv_cache=num_kv_blocks(model, demand) * block_bytes(model, demand),
        activations=step_bytes(model, demand),
        runtime=runtime + model.vocab_size * TOKENIZER_BYTES_PER_TOKEN,
        loading=model.vocab_size * LOADING_BYTES_PER_TOKEN,
    )


def step_bytes(model: ModelConfig, demand: Demand) -> int:
    size, num_tokens = BYTES_PER_ELEMENT[demand.dtype], demand.num_step_tokens
    if demand.native:
        return native_activation_bytes(
            model, bytes_per_element=size, num_tokens=num_tokens, num_rows=demand.max_num_seqs
        )
    return activation_bytes(
        model,
        bytes_per_element=size,
        num_tokens=num_tokens,
        num_rows=demand.max_num_seqs,
        max_model_len=demand.max_model_len,
    )


def block_bytes(model: ModelConfig, demand: Demand) -> int:
    return bytes_per_block(group_layers(model.kv_specs()), demand.block_size, demand.resolved_kv_cache_dtype)


def num_kv_blocks(model: ModelConfig, demand: Demand) -> int:
    """Blocks for `concurrency` full-length sequences, one of them in the middle of a chunk, and the null block."""
    groups = group_layers(model.kv_specs())
    idle = num_blocks_per_sequence(groups, demand.block_size, demand.max_model_len)
    computing = num_blocks_per_sequence(groups, demand.block_size, demand.max_model_len, demand.num_step_tokens)
    return 1 + (demand.concurrency - 1) * idle + computing


def largest_context(model: ModelConfig, demand: Demand, budget: int) -> int:
    """The longest max_model_len that fits with everything else as demanded, up to the model's own; 0 if none does."""
    return _largest(lambda n: _fits(model, replace(demand, max_model_len=n), budget), model.max_position)


def longest_in_blocks(model: ModelConfig, demand: Demand, num_blocks: int) -> int:
    """The longest max_model_len of which one sequence, a token at a time, fits in `num_blocks`; 0 if none does."""
    groups = group_layers(model.kv_specs())
    return _largest(
        lambda n: num_blocks_per_sequence(groups, demand.block_size, n) < num_blocks,  # one is the null block
        model.max_position,
    )


def _largest_concurrency(model: ModelConfig, demand: Demand, budget: int) -> int:
    """The most full-length sequences that fit; of an encoder, those of one step, since only that takes memory.

    The rows of a step grow with them beyond max_num_seqs.
    """
    if model.is_encoder:
        return demand.num_step_tokens // demand.max_model_len if _fits(model, demand, budget) else 0

    def fits(n: int) -> bool:
        return _fits(model, replace(demand, concurrency=n, max_num_seqs=max(n, demand.max_num_seqs)), budget)

    return _largest(fits, 1 + budget // block_bytes(model, demand))


def _fits(model: ModelConfig, demand: Demand, budget: int) -> bool:
    return memory_need(model, demand).total <= budget


def _largest(holds: Callable[[int], bool], high: int) -> int:
    """The largest n in [1, high] for which a predicate holds that never holds again once it fails; 0 if none."""
    low = 0
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _remedies(model: ModelConfig, demand: Demand, budget: int) -> Iterator[str]:
    """Changes each of which suffices alone; the last, more memory, always does.

    Least intrusive first: fewer at once costs only speed, a somewhat shorter context only the longest requests,
    bfloat16 some precision, a much shorter context most uses.
    """
    asked = max(demand.concurrency, demand.max_num_seqs)

    def with_fewer(n: int) -> Demand:
        return replace(demand, concurrency=min(n, demand.concurrency), max_num_seqs=min(n, demand.max_num_seqs))

    fewer = _largest(lambda n: _fits(model, with_fewer(n), budget), asked)
    if fewer:
        yield f"lower the concurrency (max_num_seqs) from {asked} to {fewer}"
    shorter = largest_context(model, demand, budget)
    shorten = f"lower max_model_len from {demand.max_model_len} to {shorter}"
    if shorter >= max(SHORTEST_CONTEXT, demand.max_model_len // 2):
        yield shorten
    if demand.dtype == "float32" and _fits(model, replace(demand, dtype="bfloat16"), budget):
        yield "set dtype to bfloat16 instead of float32"
    if shorter >= SHORTEST_CONTEXT:
        yield shorten
    total = memory_need(model, demand).total
    yield f"give it {format_size(total - budget)} more memory ({format_size(total)} in all)"
