"""One encoder in this process."""

from __future__ import annotations

from quire.checkpoint.checkpoint import Checkpoint
from quire.config import WorkerConfig
from quire.core.embedding import EncodePlan, EncodeResult
from quire.worker.encode_worker import EncodeWorker
from quire.worker.step_threads import StepThread, step_thread


class UniprocEncodeExecutor:
    """An EncodeExecutor."""

    def __init__(self, config: WorkerConfig, checkpoint: Checkpoint) -> None:
        self._thread: StepThread[EncodePlan, EncodeResult] = step_thread(config)
        self._worker = self._thread.run(lambda: EncodeWorker(config, checkpoint))
        self.collect, self.shutdown = self._thread.collect, self._thread.shutdown

    def submit(self, plan: EncodePlan) -> None:
        self._thread.submit(self._worker.execute, plan)
