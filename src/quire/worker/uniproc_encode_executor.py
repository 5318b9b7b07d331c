"""One encoder in this process, on a thread of its own."""

from __future__ import annotations

from quire.checkpoint.checkpoint import Checkpoint
from quire.config import WorkerConfig
from quire.core.embedding import EncodePlan, EncodeResult
from quire.worker.encode_worker import EncodeWorker
from quire.worker.uniproc_executor import WorkerThread


class UniprocEncodeExecutor(WorkerThread[EncodePlan, EncodeResult]):
    """An EncodeExecutor."""

    def __init__(self, config: WorkerConfig, checkpoint: Checkpoint) -> None:
        super().__init__()
        self._worker = self._run(lambda: EncodeWorker(config, checkpoint))

    def execute(self, plan: EncodePlan) -> EncodeResult:
        return self._worker.execute(plan)
