"""The engine: requests in, token deltas out. `step` is the whole story: receive, plan, execute, commit, reply."""

from __future__ import annotations

import time
from collections import deque

from quire.core.embedding import EmbeddingRequest
from quire.core.request import Request
from quire.core.sequence import FinishReason
from quire.core.stats import StepTokens
from quire.core.step import StepPlan, StepResult
from quire.core.wire import Delta
from quire.engine.beam_group import BeamGroup
from quire.engine.sample_group import SampleGroup
from quire.engine.sequence_group import SequenceGroup, SequenceIds
from quire.engine.view import EngineView
from quire.errors import EngineDeadError
from quire.scheduler.scheduler import RowUpdate, Scheduler
from quire.worker.executor import Executor


class Engine:
    """Drives one scheduler and one executor. Not thread-safe: one thread calls everything."""

    def __init__(self, scheduler: Scheduler, executor: Executor, num_steps_in_flight: int = 1) -> None:
        self.scheduler = scheduler
        self._executor = executor
        self._num_steps_in_flight = num_steps_in_flight
        self._inbox: dict[str, Request] = {}
        """In the order they came."""
        self._groups: dict[str, SequenceGroup] = {}
        self._in_flight: deque[StepPlan] = deque()
        self._sequence_ids = SequenceIds()
        self._death: str | None = None
        self.num_steps = 0
        self.step_tokens = StepTokens()
        self.view = EngineView(scheduler)
        """For those who watch; see `EngineView.take`."""

    def add_request(self, request: Request | EmbeddingRequest) -> None:
        """Queue a request for the next step. Raises InvalidRequestError if it could never finish, even alone."""
        self._check_alive()
        assert isinstance(request, Request), "InputProcessor lets no other request through"
        self.scheduler.check_fits(len(request.prompt_token_ids), request.max_num_tokens)
        self._inbox[request.request_id] = request

    def finish_sample(self, request_id: str, index: int, stop_reason: str) -> None:
        """A stop string was found in a sample's text; later tokens of it are ignored."""
        group = self._groups.get(request_id)
        if group is not None:
            group.finish_sample(index, stop_reason)
            self._forget_finished(group)

    def abort(self, request_id: str) -> None:
        """Drop a request wherever it is and free its blocks; unknown ids are ignored."""
        self._inbox.pop(request_id, None)
        group = self._groups.pop(request_id, None)
        if group is not None:
            group.abort(FinishReason.ABORT)

    def has_request(self, request_id: str) -> bool:
        """Whether some sample of a request that was started still runs."""
        return request_id in self._groups

    @property
    def has_unfinished(self) -> bool:
        return bool(self._inbox or self._groups or self._in_flight)

    def step(self) -> list[Delta]:
        """Advance every running sequence by one step; returns what the clients should hear."""
        self._check_alive()
        start_time = time.monotonic()
        self._receive()
        self._plan()
        if not self._in_flight:
            return []
        self.view.while_computing()
        plan, result = self._execute()
        updates = self._commit(plan, result)
        self.view.note_step(plan, start_time, time.monotonic())
        return self._reply(updates)

    def reset_prefix_cache(self) -> bool:
        """Forget every cached block; False (and nothing done) while sequences run."""
        return self.scheduler.reset_prefix_cache()

    def shutdown(self) -> None:
        self._death = self._death or "it was shut down"
        self._executor.shutdown()

    def _receive(self) -> None:
        inbox, self._inbox = self._inbox, {}
        for request in inbox.values():
            make = BeamGroup if request.beam_search is not None else SampleGroup
            group = make(request, self.scheduler, self._sequence_ids)
            self._groups[request.request_id] = group
            group.start()

    def _plan(self) -> None:
        """Fill the queue of steps in flight."""
        while len(self._in_flight) < self._num_steps_in_flight:
            plan = self.scheduler.plan()
            if plan is None:
                return
            self._in_flight.append(plan)
            self._submit(plan)

    def _submit(self, plan: StepPlan) -> None:
        try:
            self._executor.submit(plan)
        except Exception as error:
            raise self._died(error) from error

    def _execute(self) -> tuple[StepPlan, StepResult]:
        try:
            result = self._executor.collect()
        except Exception as error:
            raise self._died(error) from error
        plan = self._in_flight.popleft()
        self.num_steps += 1
        self.step_tokens.add(plan.num_tokens)
        return plan, result

    def _commit(self, plan: StepPlan, result: StepResult) -> list[RowUpdate]:
        return self.scheduler.commit(plan, result)

    def _reply(self, updates: list[RowUpdate]) -> list[Delta]:
        deltas: list[Delta] = []
        for update in updates:
            group = self._groups.get(update.sequence.request_id)
            if group is None:
                continue
            deltas += group.advance(update)
            self._forget_finished(group)
        return deltas

    def _forget_finished(self, group: SequenceGroup) -> None:
        if group.finished:
            self._groups.pop(group.request_id, None)

    def _died(self, error: Exception) -> EngineDeadError:
        """After a failed step the state of compute is unknown: nothing may continue on it."""
        self._death = f"a step failed with {type(error).__name__}: {error}"
        self._in_flight.clear()
        return EngineDeadError(f"The engine stopped because {self._death}.")

    def _check_alive(self) -> None:
        if self._death is not None:
            raise EngineDeadError(f"The engine stopped because {self._death}.")
