"""The engine: requests in, token deltas out. `step` is the whole story: receive, plan, execute, commit, reply."""

from __future__ import annotations

import itertools
import time

from quire.core.request import Request
from quire.core.sequence import FinishReason
from quire.core.wire import AnyRequest, Delta
from quire.engine.beam_group import BeamGroup
from quire.engine.sample_group import SampleGroup
from quire.engine.sequence_group import SequenceGroup
from quire.engine.step_queue import StepQueue
from quire.engine.view import EngineView
from quire.scheduler.scheduler import RowUpdate, Scheduler
from quire.worker.executor import Executor

GRAMMAR_WAIT_S = 0.005


class Engine:
    """Drives one scheduler and one executor. Not thread-safe: one thread calls everything."""

    def __init__(self, scheduler: Scheduler, executor: Executor, num_steps_in_flight: int = 1) -> None:
        self.scheduler = scheduler
        self.steps = StepQueue(executor, num_steps_in_flight)
        self._executor = executor
        self._inbox: dict[str, Request] = {}
        """In the order they came; those stay whose grammar is not compiled yet."""
        self._groups: dict[str, SequenceGroup] = {}
        self._seq_ids = itertools.count()
        self.view = EngineView(scheduler)
        """For those who watch; see `EngineView.take`."""

    def add_request(self, request: AnyRequest) -> None:
        """Queue a request for the next step. Raises InvalidRequestError if it could never finish, even alone."""
        self.steps.check_alive()
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
        return bool(self._inbox or self._groups or self.steps)

    def step(self) -> list[Delta]:
        """Advance every running sequence by one step; returns what the clients should hear."""
        self.steps.check_alive()
        start_time = time.monotonic()
        if self._inbox:
            self._receive()
        if not self.steps.fill(self.scheduler.plan):
            return []
        self.view.while_computing()
        plan, result = self.steps.take()
        updates = self.scheduler.commit(plan, result)
        self.view.note_step(plan, start_time, time.monotonic())
        return self._reply(updates)

    def reset_prefix_cache(self) -> bool:
        """Forget every cached block; False (and nothing done) while sequences run."""
        return self.scheduler.kv.reset_prefix_cache()

    def shutdown(self) -> None:
        self.steps.shutdown()

    def _receive(self) -> None:
        for request in [request for request in self._inbox.values() if self._can_start(request)]:
            del self._inbox[request.request_id]
            make = BeamGroup if request.beam_search is not None else SampleGroup
            group = make(request, self.scheduler, self._seq_ids)
            self._groups[request.request_id] = group
            group.start()

    def _can_start(self, request: Request) -> bool:
        """Others go on while its grammar is compiled; where there are none, that is waited for, a little each time."""
        shape = request.sampling_params.structured_outputs
        if shape is None or shape.compiled_from is None:
            return True
        return self._executor.prepare_grammar(shape.compiled_from, 0.0 if self._groups else GRAMMAR_WAIT_S)

    def _reply(self, updates: list[RowUpdate]) -> list[Delta]:
        deltas: list[Delta] = []
        for update in updates:
            group = self._groups.get(update.sequence.request_id)
            if group is None:
                continue
            deltas += group.advance(update)
            if update.sequence.finished:
                self._forget_finished(group)
        return deltas

    def _forget_finished(self, group: SequenceGroup) -> None:
        if group.finished:
            self._groups.pop(group.request_id, None)
