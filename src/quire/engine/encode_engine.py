"""The engine of an encoder: texts in, their vectors out. To those who hold it, it is an Engine."""

from __future__ import annotations

import itertools
import time

from quire.core.embedding import EmbeddingDelta, EmbeddingRequest, Vectors
from quire.core.sampling_params import SamplingParams
from quire.core.sequence import Sequence
from quire.core.wire import AnyRequest, Delta
from quire.engine.step_queue import StepQueue
from quire.engine.view import EngineView
from quire.scheduler.encode_scheduler import EncodeScheduler
from quire.worker.executor import EncodeExecutor

NEVER_SAMPLED = SamplingParams(max_tokens=1)


class EncodeEngine:
    """Drives one scheduler and one executor. Not thread-safe: one thread calls everything."""

    def __init__(self, scheduler: EncodeScheduler, executor: EncodeExecutor, num_steps_in_flight: int = 1) -> None:
        self.scheduler = scheduler
        self.steps = StepQueue(executor, num_steps_in_flight)
        self._texts: dict[str, Sequence] = {}
        self._seq_ids = itertools.count()
        self.view = EngineView(scheduler)

    def add_request(self, request: AnyRequest) -> None:
        """Queue a request for the next step."""
        self.steps.check_alive()
        assert isinstance(request, EmbeddingRequest), "InputProcessor lets no other request through"
        sequence = Sequence(
            seq_id=next(self._seq_ids),
            request_id=request.request_id,
            token_ids=request.prompt_token_ids,
            num_prompt_tokens=len(request.prompt_token_ids),
            sampling_params=NEVER_SAMPLED,
            max_num_tokens=len(request.prompt_token_ids),
            priority=request.priority,
            arrival_time=request.arrival_time,
            tenant=request.tenant,
        )
        self._texts[request.request_id] = sequence
        self.scheduler.add(sequence, request.pooling_params)

    def finish_sample(self, request_id: str, index: int, stop_reason: str) -> None:
        """A text has no samples."""

    def abort(self, request_id: str) -> None:
        """Drop a request wherever it is; unknown ids are ignored."""
        sequence = self._texts.pop(request_id, None)
        if sequence is not None:
            self.scheduler.abort(sequence)

    @property
    def has_unfinished(self) -> bool:
        return bool(self._texts or self.steps)

    def has_request(self, request_id: str) -> bool:
        """Whether it waits or is being computed."""
        return request_id in self._texts

    def step(self) -> list[Delta]:
        """Compute the next texts; returns what the clients should hear."""
        self.steps.check_alive()
        start_time = time.monotonic()
        if not self.steps.fill(self.scheduler.plan):
            return []
        self.view.while_computing()
        plan, result = self.steps.take()
        texts = self.scheduler.commit(plan, result)
        self.view.note_texts(plan, start_time, time.monotonic())
        return [self._reply(sequence, vectors) for sequence, vectors in texts]

    def reset_prefix_cache(self) -> bool:
        """An encoder has none: there is nothing left to forget."""
        return True

    def shutdown(self) -> None:
        self.steps.shutdown()

    def _reply(self, sequence: Sequence, vectors: Vectors | str) -> EmbeddingDelta:
        self._texts.pop(sequence.request_id, None)
        delta = EmbeddingDelta(sequence.request_id, first_scheduled_time=sequence.first_scheduled_time)
        if isinstance(vectors, Vectors):
            delta.vectors = vectors
        else:
            delta.error = vectors
        return delta
