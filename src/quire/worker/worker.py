"""One device's share of the model: loads it, holds its KV cache, carries out steps."""

from __future__ import annotations

from collections.abc import Callable

from quire.checkpoint.checkpoint import Checkpoint, open_checkpoint
from quire.config import WorkerConfig
from quire.core.kv_layout import KVCacheConfig
from quire.core.step import StepPlan, StepResult
from quire.models.registry import DECODERS
from quire.sampling.backend import select_sampling
from quire.sampling.grammar import Grammars
from quire.sampling.sampler import Sampler
from quire.worker.kv_cache import KVCache
from quire.worker.load import load
from quire.worker.model_runner import ModelRunner
from quire.worker.step_threads import prepare_thread


class Worker:
    def __init__(self, config: WorkerConfig, checkpoint: Checkpoint) -> None:
        self._config = config
        self._ops, self._model = load(DECODERS, config, checkpoint)
        self._tensors = self._ops.tensors
        self._runner: ModelRunner | None = None
        # Not by way of `self`: the worker goes with its last reference, and its memory with it.
        model, vocab_size = config.model, self._model.config.vocab_size
        self._grammars = Grammars(lambda: open_checkpoint(model).tokenizer, vocab_size)
        self._execute: Callable[[StepPlan], StepResult] | None = None

    def allocate_kv_cache(self, config: KVCacheConfig) -> None:
        kv = KVCache(
            config,
            self._model.config.num_layers,
            self._tensors,
            self._config.kv_cache_dtype,
            touched_by_threads=self._config.num_threads if self._config.preallocate_kv_cache else 0,
        )
        vocab_size = self._model.config.vocab_size
        self._runner = ModelRunner(
            self._model,
            kv,
            self._tensors,
            Sampler(vocab_size, select_sampling(self._config.backend, vocab_size)),
            self._config.max_num_seqs,
            self._config.max_model_len,
            self._grammars,
            records_steps=self._config.records_steps,
            large_pages=self._config.preallocate_kv_cache,
        )
        self._execute = self._tensors.computing(self._runner.execute)

    def prepare_grammar(self, grammar: str, timeout_s: float) -> bool:
        """From any thread; see `Grammars.prepare`."""
        return self._grammars.prepare(grammar, timeout_s)

    def execute(self, plan: StepPlan) -> StepResult:
        assert self._execute is not None, "allocate_kv_cache comes before the first step"
        prepare_thread(self._ops, self._config)
        return self._execute(plan)
