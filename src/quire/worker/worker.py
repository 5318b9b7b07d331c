"""One device's share of the model: loads it, holds its KV cache, carries out steps."""

from __future__ import annotations

from collections.abc import Callable

from quire.attention.select import select_backend
from quire.checkpoint.checkpoint import Checkpoint, open_checkpoint
from quire.config import WorkerConfig
from quire.core.host_memory import memory_for_loading
from quire.core.kv_layout import KVCacheConfig
from quire.core.step import StepPlan, StepResult
from quire.kernels.select import select_ops
from quire.models.registry import load_model
from quire.sampling.backend import select_sampling
from quire.sampling.grammar import Grammars
from quire.sampling.sampler import Sampler
from quire.worker.kv_cache import KVCache
from quire.worker.model_runner import ModelRunner
from quire.worker.step_threads import prepare_thread, tell_what_computes


class Worker:
    def __init__(self, config: WorkerConfig, checkpoint: Checkpoint) -> None:
        self._config = config
        self._ops = ops = select_ops(config.backend)
        prepare_thread(ops, config)
        tell_what_computes(config)
        self._tensors = ops.tensors
        dtype = ops.tensors.dtype(config.dtype)
        attention = select_backend(config.backend, dtype, checkpoint.config, config.kv_cache_dtype)
        with memory_for_loading():
            self._model = load_model(
                checkpoint, dtype, ops, attention, config.quantization, keep_packed=config.keep_packed
            )
        self._runner: ModelRunner | None = None
        self._execute: Callable[[StepPlan], StepResult] | None = None

    def allocate_kv_cache(self, config: KVCacheConfig) -> None:
        kv = KVCache(
            config,
            self._model.config.num_layers,
            self._tensors,
            self._config.kv_cache_dtype,
            touched_by_threads=self._config.num_threads if self._config.preallocate_kv_cache else 0,
        )
        # Not by way of `self`: the worker goes with its last reference, and its memory with it.
        model, vocab_size = self._config.model, self._model.config.vocab_size
        grammars = Grammars(lambda: open_checkpoint(model).tokenizer, vocab_size)
        self._runner = ModelRunner(
            self._model,
            config,
            kv,
            self._tensors,
            Sampler(vocab_size, select_sampling(self._config.backend, vocab_size)),
            self._config.max_num_seqs,
            self._config.max_model_len,
            grammars,
            records_steps=self._config.records_steps,
            large_pages=self._config.preallocate_kv_cache,
        )
        self._execute = self._tensors.computing(self._runner.execute)

    def execute(self, plan: StepPlan) -> StepResult:
        assert self._execute is not None, "allocate_kv_cache comes before the first step"
        prepare_thread(self._ops, self._config)
        return self._execute(plan)
