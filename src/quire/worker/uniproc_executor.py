"""One worker in this process."""

from __future__ import annotations

from quire.checkpoint.checkpoint import Checkpoint
from quire.config import WorkerConfig
from quire.core.kv_layout import KVCacheConfig
from quire.core.step import StepPlan, StepResult
from quire.worker.step_threads import OnStepThread, step_thread
from quire.worker.worker import Worker


class UniprocExecutor(OnStepThread[StepPlan, StepResult]):
    """An Executor."""

    def __init__(self, config: WorkerConfig, checkpoint: Checkpoint) -> None:
        thread = step_thread(config)
        self._worker = thread.run(lambda: Worker(config, checkpoint))
        super().__init__(thread, self._worker.execute)

    def allocate_kv_cache(self, config: KVCacheConfig) -> None:
        self._thread.run(lambda: self._worker.allocate_kv_cache(config))

    def prepare_grammar(self, grammar: str, timeout_s: float) -> bool:
        return self._worker.prepare_grammar(grammar, timeout_s)
