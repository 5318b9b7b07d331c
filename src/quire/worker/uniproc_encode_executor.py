"""One encoder in this process."""

from __future__ import annotations

from quire.checkpoint.checkpoint import Checkpoint
from quire.config import WorkerConfig
from quire.core.embedding import EncodePlan, EncodeResult
from quire.worker.encode_worker import EncodeWorker
from quire.worker.step_threads import OnStepThread, step_thread


class UniprocEncodeExecutor(OnStepThread[EncodePlan, EncodeResult]):
    """An EncodeExecutor."""

    def __init__(self, config: WorkerConfig, checkpoint: Checkpoint) -> None:
        thread = step_thread(config)
        self._worker = thread.run(lambda: EncodeWorker(config, checkpoint))
        super().__init__(thread, self._worker.execute)
