"""n independent samples of one prompt. The first computes the prompt; the others fork it (copy on write)."""

from __future__ import annotations

from collections.abc import Iterator

from quire.core.request import Request
from quire.core.sequence import FinishReason, Sequence
from quire.core.step import TokenLogprobs
from quire.core.wire import Delta, SampleDelta
from quire.engine.sequence_group import make_sequence
from quire.scheduler.scheduler import RowUpdate, Scheduler

SEED_STRIDE = 0x9E3779B97F4A7C15
"""2**64 / golden ratio: samples of one request get seeds far apart."""


class SampleGroup:
    __slots__ = (
        "_forked",
        "_num_unfinished",
        "_prompt_logprobs",
        "_request",
        "_scheduler",
        "_seq_ids",
        "_sequences",
        "request_id",
    )

    def __init__(self, request: Request, scheduler: Scheduler, seq_ids: Iterator[int]) -> None:
        self.request_id = request.request_id
        self._request = request
        self._scheduler = scheduler
        self._seq_ids = seq_ids
        self._sequences: dict[int, Sequence] = {}
        self._num_unfinished = request.sampling_params.n
        self._forked = request.sampling_params.n == 1
        wanted = request.sampling_params.prompt_logprobs is not None
        self._prompt_logprobs: list[TokenLogprobs] | None = [] if wanted else None
        """Until the first sample's first delta has them; None from then on."""

    def start(self) -> None:
        first = make_sequence(self._request, next(self._seq_ids), keep_blocks=not self._forked)
        self._sequences[0] = first
        self._scheduler.add(first)

    @property
    def finished(self) -> bool:
        return self._num_unfinished == 0

    def advance(self, update: RowUpdate) -> list[Delta]:
        if update.prompt_logprobs:
            self._collect_prompt_logprobs(update.start, update.prompt_logprobs)
        sequence = update.sequence
        if not update.new_token_ids and not sequence.finished:
            return []
        if not self._forked:
            self._fork(sequence)
        deltas: list[Delta] = [self._delta(update)]
        if sequence.finished:
            deltas += self._finish_unforked(sequence)
            self._num_unfinished -= 1
        return deltas

    def finish_sample(self, index: int, stop_reason: str) -> None:
        sequence = self._sequences.get(index)
        if sequence is not None and not sequence.finished:
            self._scheduler.finish(sequence, FinishReason.STOP, stop_reason)
            self._num_unfinished -= 1

    def abort(self, reason: FinishReason) -> None:
        for sequence in self._sequences.values():
            self._scheduler.drop(sequence, reason)
        self._num_unfinished = 0

    def _fork(self, first: Sequence) -> None:
        """The prompt is computed: the other samples share its blocks and recompute its last token, for the logits."""
        if first.error is None:
            self._forked = True
            for index in range(1, self._request.sampling_params.n):
                seed = (self._request.seed + index * SEED_STRIDE) % 2**64
                child = make_sequence(self._request, next(self._seq_ids), index=index, seed=seed)
                self._sequences[index] = child
                self._scheduler.fork(first, child, len(self._request.prompt_token_ids) - 1)
        self._scheduler.release(first)

    def _finish_unforked(self, first: Sequence) -> list[Delta]:
        """The first sample failed before the others existed: they fail with it."""
        if self._forked:
            return []
        others = range(1, self._request.sampling_params.n)
        self._num_unfinished -= len(others)
        return [
            SampleDelta(self.request_id, index, [], finish_reason=first.finish_reason, error=first.error)
            for index in others
        ]

    def _collect_prompt_logprobs(self, start: int, prompt_logprobs: list[TokenLogprobs]) -> None:
        """Chunks come in order; a preempted prompt starts again, and what it repeats is dropped."""
        if self._prompt_logprobs is None:
            return
        skip = len(self._prompt_logprobs) - start
        self._prompt_logprobs += prompt_logprobs[max(skip, 0) :]

    def _delta(self, update: RowUpdate) -> SampleDelta:
        sequence = update.sequence
        delta = SampleDelta(
            self.request_id,
            sequence.index,
            update.new_token_ids,
            logprobs=update.logprobs,
            finish_reason=sequence.finish_reason,
            stop_reason=sequence.stop_reason,
            error=sequence.error,
            num_cached_tokens=sequence.num_cached_tokens,
            num_preemptions=sequence.num_preemptions,
            first_scheduled_time=sequence.first_scheduled_time,
        )
        if sequence.error is None and self._prompt_logprobs is not None:
            delta.prompt_logprobs, self._prompt_logprobs = self._prompt_logprobs, None
        return delta
