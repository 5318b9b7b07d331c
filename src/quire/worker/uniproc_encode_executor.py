"""One encoder in this process, on a thread of its own."""

from __future__ import annotations

from quire.checkpoint.checkpoint import Checkpoint
from quire.config import WorkerConfig
from quire.core.embedding import EncodePlan, EncodeResult
from quire.worker.encode_worker import EncodeWorker
from quire.worker.step_threads import OwnThread


class UniprocEncodeExecutor:
    """An EncodeExecutor."""

    def __init__(self, config: WorkerConfig, checkpoint: Checkpoint) -> None:
        self._thread: OwnThread[EncodePlan, EncodeResult] = OwnThread()
        self._worker = self._thread.run(lambda: EncodeWorker(config, checkpoint))

    def submit(self, plan: EncodePlan) -> None:
        self._thread.submit(self._worker.execute, plan)

    def collect(self) -> EncodeResult:
        return self._thread.collect()

    def shutdown(self) -> None:
        self._thread.shutdown()
