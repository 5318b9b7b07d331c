"""Continuous batching: which tokens of which sequences run in the next step, and what its result changes.

There is no prefill and no decode here. A sequence has tokens that are known (or about to be) and not computed, and
each step gives it a range of them: many of a new prompt, one of a sequence that samples.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable

import msgspec

from quire.cache.kv_cache_manager import KVCacheManager
from quire.config import SchedulerConfig
from quire.core.sequence import FinishReason, Sequence, SequenceStatus
from quire.core.step import RowPlan, RowResult, SampleError, StepPlan, StepResult, TokenLogprobs
from quire.scheduler.guarantees import Guarantees, is_protected
from quire.scheduler.policies import POLICIES, SequenceQueue
from quire.scheduler.step_builder import StepBuilder
from quire.scheduler.stopping import append_token


class RowUpdate(msgspec.Struct):
    """What one step did to one sequence. Its row started at token `start`, which places `prompt_logprobs`."""

    sequence: Sequence
    start: int
    new_token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None


class Scheduler:
    """Owns the sequences' counters and status. Call `plan`, run the step, `commit`; several steps may be in flight."""

    def __init__(self, config: SchedulerConfig, kv: KVCacheManager) -> None:
        self.kv = kv
        self.num_preemptions = 0
        self.num_prompt_tokens = 0
        """Of the prompts that were started, cached tokens included."""
        self.num_generation_tokens = 0
        self.config = config
        policy = POLICIES[config.policy]()
        self._policy = policy
        self._waiting = SequenceQueue(policy)
        self._running = SequenceQueue(policy)
        self._forked: list[Sequence] = []
        """Running, but still sharing the block they will write to."""
        self._kept: dict[int, Sequence] = {}
        """Finished, keeping their blocks for a fork; in the order they finished."""
        self._guarantees = Guarantees(config, kv, policy)
        self._builder = StepBuilder(kv)
        self._in_flight: deque[tuple[StepPlan, list[Sequence]]] = deque()

    @property
    def has_unfinished(self) -> bool:
        return bool(self._waiting or self._running)

    @property
    def waiting(self) -> list[Sequence]:
        """In the order in which they will be admitted; to be read only."""
        return self._waiting.sequences

    @property
    def running(self) -> list[Sequence]:
        """In the order in which they are planned; to be read only."""
        return self._running.sequences

    @property
    def kept(self) -> Iterable[Sequence]:
        """Finished sequences that keep their blocks for a fork."""
        return self._kept.values()

    def check_fits(self, num_prompt_tokens: int, max_num_tokens: int) -> None:
        """Raise InvalidRequestError if such a sequence could never finish."""
        self._guarantees.check_fits(num_prompt_tokens, max_num_tokens)

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence. Raises InvalidRequestError if it could never finish."""
        self.check_fits(sequence.num_known, sequence.max_num_tokens)
        self._policy.arrived(sequence, 0)
        self._waiting.add(sequence)

    def fork(self, parent: Sequence, child: Sequence, num_tokens: int) -> None:
        """Add a sequence whose first `num_tokens` tokens are its parent's: it shares their blocks, copy on write.

        If somebody who waits comes before it, the batch is full or the parent's blocks are gone, it waits like a new one, and
        finds what is left of them through the prefix cache.
        """
        assert num_tokens < child.num_known, "a fork needs a token to compute"
        self.check_fits(child.num_known, child.max_num_tokens)
        self._policy.arrived(child, num_tokens)
        running = self._running.sequences
        has_place = len(running) < self.config.max_num_seqs and self._waiting.would_lead(child)
        joins = has_place and self._guarantees.can_join(running, child)
        if joins and num_tokens <= parent.num_planned and self.kv.fork(parent, child, num_tokens):
            child.num_planned = child.num_computed = num_tokens
            child.status = SequenceStatus.RUNNING
            self._running.add(child)
            self._policy.started(child)
            self._forked.append(child)
        else:
            self._waiting.add(child)

    def abort(self, sequence: Sequence) -> None:
        self.finish(sequence, FinishReason.ABORT)

    def finish(self, sequence: Sequence, reason: FinishReason, stop_reason: int | str | None = None) -> None:
        """End a sequence wherever it is; what steps in flight still return for it is ignored. Idempotent."""
        if sequence.finished:
            return
        queue = self._running if sequence.status is SequenceStatus.RUNNING else self._waiting
        queue.remove(sequence)
        self._policy.finished(sequence)
        sequence.status = SequenceStatus.FINISHED
        sequence.finish_reason = reason
        sequence.stop_reason = stop_reason
        self._builder.release_row(sequence)
        if sequence.keep_blocks:
            self._kept[sequence.seq_id] = sequence
        else:
            self.kv.free(sequence)

    def drop(self, sequence: Sequence, reason: FinishReason) -> None:
        """End a sequence, if it has not ended, and keep no blocks of it."""
        self.release(sequence)
        self.finish(sequence, reason)

    def release(self, sequence: Sequence) -> None:
        """Give back the blocks that a finished `keep_blocks` sequence kept; one that still runs will keep none."""
        sequence.keep_blocks = False
        if self._kept.pop(sequence.seq_id, None) is not None:
            self.kv.free(sequence)

    def plan(self) -> StepPlan | None:
        """The next step; None if nothing can run before a step in flight is committed.

        Running sequences come before waiting ones, so that a long prompt never stalls decoding.
        """
        if self._forked:
            self._settle_forks()
        budget = self._plan_running(self.config.max_num_batched_tokens)
        if self._waiting.sequences:
            self._admit(budget)
        step = self._builder.build()
        if step is None:
            assert self._in_flight or not self.has_unfinished, "unfinished sequences, nothing to run or to wait for"
            return None
        self._in_flight.append(step)
        return step[0]

    def commit(self, plan: StepPlan, result: StepResult) -> list[RowUpdate]:
        """Take in the result of the oldest step in flight."""
        planned, sequences = self._in_flight.popleft()
        assert planned.step_id == plan.step_id == result.step_id, "steps are committed in the order they were planned"
        updates = []
        for sequence, row, row_result in zip(sequences, plan.rows, result.rows, strict=True):
            update = self._commit_row(sequence, row, row_result)
            if update is not None:
                updates.append(update)
        return updates

    def _settle_forks(self) -> None:
        """Copy on write. Newcomers copy, before anyone is planned, so that their parents' tables never change."""
        for child in self._forked:
            if child.status is SequenceStatus.RUNNING and not self.kv.make_writable(child, child.num_planned):
                self._send_back(child)
        self._forked.clear()

    def _plan_running(self, budget: int) -> int:
        """Plan the running sequences, first in order first; returns what is left of the budget."""
        running = self._running.sequences
        chunked = self.config.enable_chunked_prefill
        index = 0
        while index < len(running) and budget > 0:
            sequence = running[index]
            start = sequence.num_planned
            end = newest = len(sequence.token_ids) + sequence.num_samples_in_flight
            if chunked and end - start > 1:
                # A token is left for each sequence behind, so that none of them stalls.
                end = min(end, start + max(1, budget - (len(running) - index - 1)))
            if newest < sequence.max_num_tokens:  # Else its last token is in flight.
                new_block_ids = None
                if end - start > 1 or end > self.kv.capacity(sequence):
                    new_block_ids, end = self._make_room(index, end)
                if end > start:
                    self._plan_row(sequence, end, end == newest, new_block_ids)
                    budget -= end - start
            index += 1
        return budget

    def _make_room(self, index: int, end: int) -> tuple[list[list[int]] | None, int]:
        """Extend a running sequence's tables up to token `end`, at the expense of those after it.

        Returns the new blocks, and how far the sequence can be computed with them. When nobody is left to preempt,
        the first in order makes do with what there is; any other stays as it is for this step.
        """
        sequence = self._running.sequences[index]
        while (new_block_ids := self.kv.extend(sequence, sequence.num_planned, end)) is None:
            if self._preempt_after(index) or (index == 0 and self._reclaim_kept()):
                continue
            if index > 0:
                return None, sequence.num_planned
            end = self.kv.reachable_end(sequence)
            assert end > sequence.num_planned, f"{sequence!r} has the cache to itself and does not fit"
        return new_block_ids, end

    def _admit(self, budget: int) -> None:
        """Start waiting sequences, strictly in order, while sequences, tokens and blocks allow."""
        # Without chunks the first prompt of a step may exceed the budget; a long one would never run otherwise.
        whole_prompt_due = not self.config.enable_chunked_prefill
        waiting = self._waiting.sequences
        while waiting and len(self._running) < self.config.max_num_seqs and budget > 0:
            sequence = waiting[0]
            if sequence.num_steps_in_flight or not self._guarantees.can_join(self._running.sequences, sequence):
                return
            num_tokens = self._start(sequence, sequence.num_known if whole_prompt_due else budget)
            if num_tokens:
                budget -= num_tokens
                whole_prompt_due = False
            elif self._running or not self._reclaim_kept():
                return

    def _start(self, sequence: Sequence, budget: int) -> int:
        """Move a waiting sequence to the running ones and plan its first range; returns the tokens planned, or 0."""
        hit = self.kv.find_prefix(sequence)
        start, newest = hit.num_tokens, sequence.num_known
        end = min(newest, start + budget)
        if end < newest and not self.config.enable_chunked_prefill:
            return 0
        if not self._running:
            end = min(end, self.kv.reachable_end_after(hit))
        # A block for each running sequence stays free, or the newcomer would soon be preempted again; of several KV groups one.
        if end <= start or not self.kv.admit(sequence, hit, end, headroom=len(self._running)):
            return 0
        if sequence.num_preemptions == 0:
            sequence.num_cached_tokens = min(start, sequence.num_prompt_tokens)
        if sequence.first_scheduled_time is None:
            self._note_first_start(sequence)
        self._waiting.remove(sequence)
        self._running.add(sequence)
        self._policy.started(sequence)
        sequence.status = SequenceStatus.RUNNING
        sequence.num_planned = sequence.num_computed = start
        self._plan_row(sequence, end, end == newest, None)
        return end - start

    def _note_first_start(self, sequence: Sequence) -> None:
        """Counts a prompt once, however many samples and beams go on from it."""
        sequence.first_scheduled_time = time.monotonic()
        if sequence.index > 0 or sequence.num_output_tokens > 0:
            return
        self.num_prompt_tokens += sequence.num_prompt_tokens
        if self.kv.looks_up(sequence):
            self.kv.num_prefix_query_tokens += sequence.num_prompt_tokens
            self.kv.num_prefix_hit_tokens += sequence.num_cached_tokens

    def _plan_row(self, sequence: Sequence, end: int, samples: bool, new_block_ids: list[list[int]] | None) -> None:
        self._builder.add_row(sequence, sequence.num_planned, end, samples, new_block_ids)
        sequence.num_planned = end
        sequence.num_steps_in_flight += 1
        sequence.num_samples_in_flight += samples

    def _preempt_after(self, index: int) -> bool:
        """Preempt the last unprotected running sequence after `index`; False if there is none."""
        for victim in reversed(self._running.sequences[index + 1 :]):
            if not is_protected(victim):
                self._send_back(victim)
                victim.num_preemptions += 1
                self.num_preemptions += 1
                return True
        return False

    def _send_back(self, sequence: Sequence) -> None:
        """From running to waiting. Its tokens will be computed again, except for those the prefix cache still has."""
        self._running.remove(sequence)
        self.kv.free(sequence)
        self._builder.release_row(sequence)
        sequence.status = SequenceStatus.WAITING
        sequence.num_planned = sequence.num_computed = 0
        self._waiting.add(sequence)

    def _reclaim_kept(self) -> bool:
        """Take the blocks of the last finished sequence that keeps them; a fork of it will recompute."""
        if not self._kept:
            return False
        self.kv.free(self._kept.popitem()[1])
        return True

    def _commit_row(self, sequence: Sequence, row: RowPlan, result: RowResult) -> RowUpdate | None:
        """None if the sequence was finished meanwhile. A preempted one keeps the token it sampled."""
        sequence.num_steps_in_flight -= 1
        sequence.num_samples_in_flight -= row.samples
        ignored = sequence.finished
        if result.error is not None:
            self._fail(sequence, result.error)
            return None if ignored else RowUpdate(sequence, row.start, [])
        if ignored:
            return None
        if sequence.status is SequenceStatus.RUNNING:
            sequence.num_computed = row.start + row.num_tokens
        update = RowUpdate(sequence, row.start, result.token_ids, result.logprobs, result.prompt_logprobs)
        for num_appended, token_id in enumerate(result.token_ids, 1):
            stop = append_token(sequence, token_id)
            if stop is not None:
                self.finish(sequence, *stop)
                update.new_token_ids = result.token_ids[:num_appended]
                update.logprobs = result.logprobs and result.logprobs[:num_appended]
                break
        self.num_generation_tokens += len(update.new_token_ids)
        return update

    def _fail(self, sequence: Sequence, error: SampleError) -> None:
        """End a sequence that could not be sampled, if it has not ended. Nobody may find or fork what it wrote, if that is no numbers."""
        ends = not sequence.finished
        if ends:
            sequence.error = error
            self.finish(sequence, FinishReason.ERROR)
        not_finite = error.cause == "not_finite"
        if ends or not_finite:
            self.release(sequence)
        if not_finite:
            self.kv.forget_content(sequence)
