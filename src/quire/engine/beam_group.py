"""Beam search on forked sequences.

Every live hypothesis is a sequence that samples one token and keeps its blocks. Once all of a round have reported,
the best continuations become new sequences that fork their parents (sharing every block, copy on write), and the
parents give their blocks back. Scores rank by cumulative logprob / output length ** length_penalty
(Wu et al. 2016, without the additive constant).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from quire.core.request import Request
from quire.core.sequence import FinishReason, Sequence
from quire.core.step import TokenLogprobs
from quire.core.wire import BeamDelta, Delta
from quire.engine.sequence_group import make_sequence
from quire.scheduler.scheduler import RowUpdate, Scheduler


class Hypothesis(NamedTuple):
    """An output so far; `parent` computed all of it but its last token."""

    output: list[int]
    cumulative_logprob: float
    parent: Sequence | None
    finish_reason: FinishReason = FinishReason.LENGTH


class BeamGroup:
    def __init__(self, request: Request, scheduler: Scheduler, seq_ids: Iterator[int]) -> None:
        assert request.beam_search is not None
        self.request_id = request.request_id
        self.finished = False
        self._request = request
        self._search = request.beam_search
        self._scheduler = scheduler
        self._seq_ids = seq_ids
        self._eos = frozenset(() if self._search.ignore_eos else request.eos_token_ids)
        self._live: dict[int, tuple[Sequence, Hypothesis]] = {}
        self._reported: dict[int, TokenLogprobs] = {}
        self._complete: list[Hypothesis] = []

    def start(self) -> None:
        self._spawn(Hypothesis([], 0.0, None))

    def advance(self, update: RowUpdate) -> list[Delta]:
        sequence = update.sequence
        if sequence.error is not None:
            self.abort(FinishReason.ERROR)
            return [BeamDelta(self.request_id, [], error=sequence.error)]
        if update.logprobs:
            self._reported[sequence.seq_id] = update.logprobs[0]
        if len(self._reported) < len(self._live):
            return []
        return self._next_round()

    def finish_sample(self, index: int, stop_reason: str) -> None:
        """Stop strings do not apply to hypotheses."""

    def abort(self, reason: FinishReason) -> None:
        for sequence, _ in self._live.values():
            self._scheduler.drop(sequence, reason)
        self._live.clear()
        self.finished = True

    def _next_round(self) -> list[Delta]:
        """All live hypotheses have been extended: keep the best, fork them, let the parents go."""
        parents = [sequence for sequence, _ in self._live.values()]
        candidates = sorted(self._extensions(), key=self._score, reverse=True)
        self._complete += [found for found in candidates if found.finish_reason is FinishReason.STOP]
        going_on = [found for found in candidates if found.finish_reason is FinishReason.LENGTH]
        going_on = going_on[: self._search.beam_width]
        self._live.clear()
        self._reported.clear()
        num_tokens = len(self._request.prompt_token_ids) + (len(going_on[0].output) if going_on else 0)
        over = not going_on or num_tokens >= self._request.max_num_tokens
        if not over:
            for hypothesis in going_on:
                self._spawn(hypothesis)
        for parent in parents:
            self._scheduler.release(parent)
        return self._conclude(going_on) if over else []

    def _extensions(self) -> list[Hypothesis]:
        """The 2 * beam_width likeliest tokens of each live hypothesis (entry 0 of the logprobs is the chosen one)."""
        found = []
        for seq_id, (sequence, hypothesis) in self._live.items():
            top = self._reported[seq_id]
            for token_id, logprob in zip(top.token_ids[1:], top.logprobs[1:], strict=True):
                reason = FinishReason.STOP if token_id in self._eos else FinishReason.LENGTH
                total = hypothesis.cumulative_logprob + logprob
                found.append(Hypothesis([*hypothesis.output, token_id], total, sequence, reason))
        return found

    def _spawn(self, hypothesis: Hypothesis) -> None:
        """A sequence that extends a hypothesis by one token."""
        token_ids = self._request.prompt_token_ids + hypothesis.output
        sequence = make_sequence(
            self._request,
            next(self._seq_ids),
            token_ids=token_ids,
            max_num_tokens=len(token_ids) + 1,
            keep_blocks=True,
        )
        self._live[sequence.seq_id] = (sequence, hypothesis)
        if hypothesis.parent is None:
            self._scheduler.add(sequence)
        else:
            self._scheduler.fork(hypothesis.parent, sequence, len(token_ids) - 1)

    def _score(self, hypothesis: Hypothesis) -> float:
        length = len(hypothesis.output) - (hypothesis.finish_reason is FinishReason.STOP)
        penalty: float = max(length, 1) ** self._search.length_penalty
        return hypothesis.cumulative_logprob / penalty

    def _conclude(self, live: list[Hypothesis]) -> list[Delta]:
        best = sorted(self._complete + live, key=self._score, reverse=True)[: self._search.beam_width]
        self.finished = True
        hypotheses = [(found.output, found.cumulative_logprob, found.finish_reason) for found in best]
        return [BeamDelta(self.request_id, hypotheses)]
