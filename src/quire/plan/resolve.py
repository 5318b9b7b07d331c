"""From what the user asked to what the engine does: every "auto" and None is decided here, once, with its reason."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import TypeVar

from quire.checkpoint.model_config import ModelConfig
from quire.config import EngineConfig, ResolvedDType, SchedulerConfig, Task, WorkerConfig
from quire.core.backend import Backend
from quire.core.kv_layout import make_kv_cache_config
from quire.errors import InvalidRequestError, OutOfMemoryError, UnsupportedModelError
from quire.plan.backend import (
    check_kv_cache_dtype,
    check_quantization,
    choose_backend,
    choose_block_size,
    choose_instruction_set,
    choose_packed_cache,
    choose_quantization,
    runs_native,
    what_given_sizes_cost,
)
from quire.plan.dtype import choose_dtype
from quire.plan.machine import Machine
from quire.plan.memory import (
    SHORTEST_CONTEXT,
    Demand,
    MemoryPlan,
    block_bytes,
    largest_context,
    longest_in_blocks,
    memory_need,
    num_kv_blocks,
    plan_memory,
)
from quire.plan.resolved_config import ResolvedConfig
from quire.plan.sizes import format_size
from quire.plan.weights import weights_left_as_floats

TYPICAL_SEQUENCE_TOKENS = 512
"""The KV cache is made for max_num_seqs sequences of this length, prompt and output of a usual chat turn, ..."""

MIN_FULL_SEQUENCES = 4
"""... and for at least this many of the whole context. More would only take a laptop's memory from its user."""

Choice = TypeVar("Choice")


def resolve(config: EngineConfig, model: ModelConfig, machine: Machine) -> ResolvedConfig:
    """Decide everything. Raises OutOfMemoryError with the planner's remedy, or InvalidRequestError."""
    return _Resolver(config, model, machine, int(machine.free_memory * config.memory_utilization)).resolve()


def plan_for(
    config: EngineConfig, model: ModelConfig, machine: Machine, budget: int, concurrency: int
) -> tuple[MemoryPlan, str | None]:
    """The memory of so many sequences of the whole context at once, whether or not it fits in `budget` bytes.

    And why in that dtype.
    """
    check_context(config, model)
    resolver = _Resolver(replace(config, max_num_seqs=concurrency), model, machine, budget, concurrency)
    dtype, why_dtype, backend = resolver.compute()
    return plan_memory(model, resolver.demand(dtype, native=backend == "cpu"), budget), why_dtype


def check_context(config: EngineConfig, model: ModelConfig) -> None:
    """Raises InvalidRequestError for more tokens than the model was trained for."""
    given, limit = config.max_model_len, model.max_position
    if given is not None and given > limit:
        raise InvalidRequestError(
            f"max_model_len is {given}, but {config.model} was trained for {limit} tokens;"
            f" lower max_model_len to {limit}.",
            field="max_model_len",
            value=given,
        )


class _Resolver:
    """One pass over the knobs. `reasons` grows in the order of the decisions, each of which rests on those before.

    `budget`: bytes that the whole process may take. `concurrency`: sequences of the whole context that must fit.
    """

    def __init__(
        self, config: EngineConfig, model: ModelConfig, machine: Machine, budget: int, concurrency: int = 1
    ) -> None:
        self.config = config
        self.model = model
        self.machine = machine
        self.budget = budget
        self.concurrency = concurrency
        self.reasons: list[str] = []
        self.block_size = self._with_reason(choose_block_size(config, model))
        self.quantization = self._with_reason(choose_quantization(config, model, machine))

    def resolve(self) -> ResolvedConfig:
        task = self._task()
        dtype, _, backend = self.compute()
        instruction_set = self._with_reason(choose_instruction_set(self.config, self.machine, backend))
        self.reasons += weights_left_as_floats(self.quantization, self.model, dtype)
        self.reasons += what_given_sizes_cost(self.config, self.model, backend)
        keep_packed = self._with_reason(choose_packed_cache(self.config, self.model, self.quantization, backend))
        demand = self._with_context(self.demand(dtype, native=backend == "cpu"))
        kv_cache = make_kv_cache_config(
            self.model.kv_specs(),
            block_size=demand.block_size,
            dtype=demand.resolved_kv_cache_dtype,
            num_blocks=self._num_blocks(demand),
        )
        return ResolvedConfig(
            task=task,
            worker=self._worker(demand, backend, instruction_set, keep_packed=keep_packed),
            scheduler=self._scheduler(demand),
            kv_cache=kv_cache,
            enable_prefix_caching=self.config.enable_prefix_caching,
            eviction_policy=self.config.eviction_policy,
            num_steps_in_flight=self.config.num_steps_in_flight,
            memory=plan_memory(self.model, demand, self.budget),
            reasons=tuple(self.reasons),
        )

    def compute(self) -> tuple[ResolvedDType, str | None, Backend]:
        """In what is computed, why in that where it was not given, and by which kernels."""
        config, model, machine = self.config, self.model, self.machine
        native = runs_native(config, model, machine)
        least = self.demand("float32", native=native)
        dtype, why_dtype = choose_dtype(config, model, machine, least, self.budget, native=native)
        self._with_reason((dtype, why_dtype))
        backend = self._with_reason(choose_backend(config, model, machine, dtype))
        check_quantization(config, self.quantization, model, backend)
        check_kv_cache_dtype(config, model, backend)
        return dtype, why_dtype, backend

    def _with_reason(self, choice: tuple[Choice, str | None]) -> Choice:
        """A choice whose reason, if it has one, has been noted."""
        chosen, reason = choice
        if reason is not None:
            self.reasons.append(reason)
        return chosen

    def _task(self) -> Task:
        possible: Task = "embed" if self.model.is_encoder else "generate"
        if self.config.task not in ("auto", possible):
            raise UnsupportedModelError(
                f"task is {self.config.task}, but {self.config.model} is {self.model.architecture}, which can only"
                f" {possible}; set task to {possible} or choose another model."
            )
        return possible

    def _num_threads(self) -> int:
        asked, cores, cpus = self.config.num_threads, self.machine.num_cores, self.machine.num_cpus
        if asked is None:
            self.reasons.append(f"num_threads {cores}: the physical cores this process may use.")
            return cores
        if asked > cpus:
            # Members of a team that share a CPU wait for each other at every kernel's end: many times as slow.
            self.reasons.append(f"num_threads {cpus}, not {asked}: this process may use no more CPUs.")
        return min(asked, cpus)

    def demand(self, dtype: ResolvedDType, *, native: bool) -> Demand:
        """What must fit."""
        return Demand(
            dtype=dtype,
            native=native,
            quantization=self.quantization,
            kv_cache_dtype=self.config.kv_cache_dtype,
            max_model_len=self.config.max_model_len or self.model.default_context,
            concurrency=self.concurrency,
            max_num_seqs=self.config.max_num_seqs,
            block_size=self.block_size,
            max_num_batched_tokens=self.config.max_num_batched_tokens,
            # Tokens of an encoder see those after them: a text is computed whole.
            enable_chunked_prefill=self.config.enable_chunked_prefill and not self.model.is_encoder,
        )

    def _with_context(self, demand: Demand) -> Demand:
        """The demand with its context checked, where it was given, or else cut to what memory and num_blocks allow."""
        check_context(self.config, self.model)
        given = self.config.max_model_len
        limit = given or self.model.default_context
        fitting = min(limit, largest_context(self.model, demand, self.budget))
        least = given or min(SHORTEST_CONTEXT, limit)
        if fitting < least:
            raise self._out_of_memory(replace(demand, max_model_len=least))
        if given is not None:
            return demand
        why = "the model's own limit"
        if fitting < limit:
            why = f"the model's {limit} do not fit in the {self._budget_in_words()}"
        if self.config.num_blocks is not None:
            in_blocks = self._longest_in_blocks(demand, self.config.num_blocks)
            if in_blocks < fitting:
                fitting, why = in_blocks, f"what {self.config.num_blocks} blocks of {demand.block_size} tokens hold"
        self.reasons.append(f"max_model_len {fitting}: {why}.")
        return replace(demand, max_model_len=fitting)

    def _longest_in_blocks(self, demand: Demand, num_blocks: int) -> int:
        longest = longest_in_blocks(self.model, demand, num_blocks)
        if longest == 0:
            least = num_kv_blocks(self.model, replace(demand, max_model_len=1))
            raise InvalidRequestError(
                f"num_blocks is {num_blocks}, but one token of {self.config.model} needs {least};"
                f" raise num_blocks to at least {least}.",
                field="num_blocks",
                value=num_blocks,
            )
        return longest

    def _num_blocks(self, demand: Demand) -> int:
        """Only the null block for an encoder; as given, or enough for a stated number of sequences, or all that fit."""
        if self.model.is_encoder:
            return 1
        need, size = memory_need(self.model, demand), block_bytes(self.model, demand)
        room = (self.budget - need.without_kv) // size
        given = self.config.num_blocks
        if given is not None:
            if given > room:
                raise OutOfMemoryError(
                    f"num_blocks is {given}, but beside weights and activations only {max(0, room)} blocks of"
                    f" {format_size(size)} fit in the {self._budget_in_words()}; lower num_blocks or leave it out."
                )
            return given
        typical_len = min(TYPICAL_SEQUENCE_TOKENS, demand.max_model_len)
        typical = replace(demand, concurrency=demand.max_num_seqs, max_model_len=typical_len)
        full = replace(demand, concurrency=min(MIN_FULL_SEQUENCES, demand.max_num_seqs))
        enough = max(typical, full, key=partial(num_kv_blocks, self.model))
        wanted = num_kv_blocks(self.model, enough)
        num_blocks = min(wanted, room)
        plural = "s" if enough.concurrency > 1 else ""
        why = f"for {enough.concurrency} sequence{plural} of {enough.max_model_len} tokens"
        if room < wanted:
            why = f"all that fit in the {self._budget_in_words()}"
        self.reasons.append(f"num_blocks {num_blocks} ({format_size(num_blocks * size)} when full): {why}.")
        return num_blocks

    def _worker(
        self, demand: Demand, backend: Backend, instruction_set: str | None, *, keep_packed: bool
    ) -> WorkerConfig:
        return WorkerConfig(
            model=self.config.model,
            dtype=demand.dtype,
            quantization=demand.quantization,
            kv_cache_dtype=demand.resolved_kv_cache_dtype,
            preallocate_kv_cache=self.config.preallocate_kv_cache,
            keep_packed=keep_packed,
            enforce_eager=self.config.enforce_eager,
            backend=backend,
            instruction_set=instruction_set,
            num_threads=self._num_threads(),
            # With one step in flight there is nothing to do beside it; torch has to stay on one thread.
            own_thread=backend != "cpu" or self.config.num_steps_in_flight > 1,
            max_num_seqs=demand.max_num_seqs,
            max_model_len=demand.max_model_len,
        )

    def _scheduler(self, demand: Demand) -> SchedulerConfig:
        return SchedulerConfig(
            max_num_batched_tokens=demand.max_num_batched_tokens,
            max_num_seqs=demand.max_num_seqs,
            max_model_len=demand.max_model_len,
            policy=self.config.scheduling_policy,
            enable_chunked_prefill=demand.enable_chunked_prefill,
        )

    def _out_of_memory(self, demand: Demand) -> OutOfMemoryError:
        plan = plan_memory(self.model, demand, self.budget)
        need = plan.need
        return OutOfMemoryError(
            f"{self.config.model} in {demand.dtype} with a context of {demand.max_model_len} tokens needs"
            f" {format_size(need.total)} (weights {format_size(need.weights)}, KV cache {format_size(need.kv_cache)},"
            f" activations {format_size(need.activations)}, runtime {format_size(need.runtime)}; or, before there are"
            f" KV cache and activations, {format_size(need.loading)} to load), more than the"
            f" {self._budget_in_words()}; {self._larger_share(need.total)}{plan.remedy}."
        )

    def _larger_share(self, num_bytes: int) -> str:
        """The remedy before all others where the machine has that much."""
        if num_bytes > self.machine.free_memory:
            return ""
        return f"raise memory_utilization to {math.ceil(100 * num_bytes / self.machine.free_memory) / 100}, or "

    def _budget_in_words(self) -> str:
        share, free = self.config.memory_utilization, format_size(self.machine.free_memory)
        return (
            f"{format_size(self.budget)} that memory_utilization={share} allows of {free}"
            f" ({self.machine.memory_limited_by})"
        )
