"""The engine of an encoder: texts in, their vectors out. To those who hold it, it is an Engine."""

from __future__ import annotations

import itertools
import time
from collections import deque

from quire.core.embedding import EmbeddingDelta, EmbeddingRequest, EncodePlan, EncodeResult, Vectors
from quire.core.request import Request
from quire.core.sampling_params import SamplingParams
from quire.core.sequence import Sequence
from quire.core.stats import StepTokens
from quire.core.wire import Delta
from quire.engine.view import EngineView
from quire.errors import EngineDeadError
from quire.scheduler.encode_scheduler import EncodeScheduler
from quire.worker.executor import EncodeExecutor

NEVER_SAMPLED = SamplingParams(max_tokens=1)


class EncodeEngine:
    """Drives one scheduler and one executor. Not thread-safe: one thread calls everything."""

    def __init__(self, scheduler: EncodeScheduler, executor: EncodeExecutor, num_steps_in_flight: int = 1) -> None:
        self.scheduler = scheduler
        self._executor = executor
        self._num_steps_in_flight = num_steps_in_flight
        self._texts: dict[str, Sequence] = {}
        self._seq_ids = itertools.count()
        self._in_flight: deque[EncodePlan] = deque()
        self._death: str | None = None
        self.num_steps = 0
        self.step_tokens = StepTokens()
        self.view = EngineView(scheduler)

    def add_request(self, request: Request | EmbeddingRequest) -> None:
        """Queue a request for the next step."""
        self._check_alive()
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
        return bool(self._in_flight or self._texts)

    def has_request(self, request_id: str) -> bool:
        """Whether it waits or is being computed."""
        return request_id in self._texts

    def step(self) -> list[Delta]:
        """Compute the next texts; returns what the clients should hear."""
        self._check_alive()
        start_time = time.monotonic()
        try:
            self._plan()
            if not self._in_flight:
                return []
            plan, result = self._execute()
        except Exception as error:
            # After a failed step the state of compute is unknown: nothing may continue on it.
            self._death = f"a step failed with {type(error).__name__}: {error}"
            self._in_flight.clear()
            raise EngineDeadError(f"The engine stopped because {self._death}.") from error
        texts = self.scheduler.commit(plan, result)
        self.view.note_texts(plan, start_time, time.monotonic())
        return [self._reply(sequence, vectors) for sequence, vectors in texts]

    def reset_prefix_cache(self) -> bool:
        """An encoder has none: there is nothing left to forget."""
        return True

    def shutdown(self) -> None:
        self._death = self._death or "it was shut down"
        self._executor.shutdown()

    def _plan(self) -> None:
        """Fill the queue of steps in flight."""
        while len(self._in_flight) < self._num_steps_in_flight:
            plan = self.scheduler.plan()
            if plan is None:
                return
            self._in_flight.append(plan)
            self._executor.submit(plan)

    def _execute(self) -> tuple[EncodePlan, EncodeResult]:
        result = self._executor.collect()
        plan = self._in_flight.popleft()
        self.num_steps += 1
        self.step_tokens.add(plan.num_tokens)
        return plan, result

    def _reply(self, sequence: Sequence, vectors: Vectors | str) -> EmbeddingDelta:
        self._texts.pop(sequence.request_id, None)
        delta = EmbeddingDelta(sequence.request_id, first_scheduled_time=sequence.first_scheduled_time)
        if isinstance(vectors, Vectors):
            delta.vectors = vectors
        else:
            delta.error = vectors
        return delta

    def _check_alive(self) -> None:
        if self._death is not None:
            raise EngineDeadError(f"The engine stopped because {self._death}.")
