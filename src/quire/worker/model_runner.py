"""From a StepPlan to a StepResult: gather the batch, run the model, sample."""

from __future__ import annotations

from typing import Any

import numpy as np

from quire.core.arrays import Float32Array
from quire.core.step import RowPlan, RowResult, StepPlan, StepResult, TokenLogprobs
from quire.kernels.tensor import Tensors
from quire.models.decoder import Decoder
from quire.sampling.grammar import Grammars
from quire.sampling.sampler import Sampler, SamplingRow
from quire.worker.computed_step import ComputedStep
from quire.worker.eager_steps import EagerSteps
from quire.worker.kv_cache import KVCache
from quire.worker.row_table import Row, RowTable
from quire.worker.step_programs import StepPrograms

PROMPT_LOGPROBS_CHUNK = 128
"""Positions whose logits over the vocabulary are held at once."""


class ModelRunner:
    """Owns the rows and the KV cache of one model."""

    def __init__(
        self,
        model: Decoder,
        kv: KVCache,
        tensors: Tensors,
        sampler: Sampler,
        max_num_seqs: int,
        max_model_len: int,
        grammars: Grammars | None = None,
        *,
        records_steps: bool = False,
        large_pages: bool = False,
    ) -> None:
        """`records_steps`: those that can be run as programs, without Python; these compute in `large_pages`."""
        self._model = model
        self._kv = kv
        self._tensors = tensors
        self._sampler = sampler
        self._table = RowTable(kv.config, max_num_seqs, max_model_len, grammars)
        self._eager = EagerSteps(model, kv, self._table, tensors)
        self._programs = (
            StepPrograms(model, kv, self._table, max_num_seqs, max_model_len, large_pages=large_pages)
            if records_steps
            else None
        )

    def execute(self, plan: StepPlan) -> StepResult:
        """By way of `Tensors.computing`."""
        if plan.released_seq_ids or plan.new_rows or plan.block_copies:
            self._apply_changes(plan)
        rows, sampling, prompt_logprobs = [], [], []
        for i, row_plan in enumerate(plan.rows):
            row = self._table.rows[row_plan.seq_id]
            rows.append(row)
            if row_plan.new_block_ids is not None:
                self._table.append_blocks(row, row_plan.new_block_ids)
            if row_plan.samples:
                sampling.append(i)
                row.sampling.prepare()
            if row.sampling.num_prompt_logprobs is not None:
                prompt_logprobs.append(i)
        step = self._compute(plan, rows)
        results = [RowResult(row_plan.seq_id, []) for row_plan in plan.rows]
        if sampling:
            self._sample(sampling, rows, step, results)
        for i in prompt_logprobs:
            results[i].prompt_logprobs = self._prompt_logprobs(plan.rows[i], rows[i].sampling, step, i)
        return StepResult(plan.step_id, results)

    def _compute(self, plan: StepPlan, rows: list[Row]) -> ComputedStep:
        step = None if self._programs is None else self._programs.compute(plan, rows)
        return self._eager.compute(plan.rows, rows) if step is None else step

    def _apply_changes(self, plan: StepPlan) -> None:
        for seq_id in plan.released_seq_ids:
            self._table.release(seq_id)
        for new in plan.new_rows:
            self._table.add(new)
        if plan.block_copies:
            self._kv.copy_blocks(plan.block_copies)

    def _sample(self, sampling: list[int], rows: list[Row], step: ComputedStep, results: list[RowResult]) -> None:
        """One token for each of these rows."""
        best = None if step.most_likely is None else step.most_likely().of_rows(sampling)
        sampled = [rows[i].sampling for i in sampling]
        taken = None if best is None else self._sampler.take(best, sampled)
        if taken is not None:
            for i, token_id in zip(sampling, taken, strict=True):
                self._table.append_token(rows[i], token_id)
                results[i].token_ids.append(token_id)
            return
        for i, token in zip(sampling, self._sampler.sample(self._logits(step, sampling), sampled, best), strict=True):
            if token.error is not None:
                results[i].error = token.error
                continue
            self._table.append_token(rows[i], token.token_id)
            results[i].token_ids.append(token.token_id)
            if token.logprobs is not None:
                results[i].logprobs = [token.logprobs]

    def _logits(self, step: ComputedStep, rows: list[int]) -> Float32Array:
        """[L, V] of the last tokens of these rows of the step, in order."""
        tokens = [step.query_starts[i + 1] - 1 for i in rows]
        if step.logits is None:
            return self._all_logits(step.hidden[self._tensors.of(np.array(tokens))])
        first, last = tokens[0], tokens[-1] + 1
        # In a row, as they mostly are, they need not be copied.
        logits: Float32Array = step.logits[first:last] if last - first == len(tokens) else step.logits[tokens]
        return logits

    def _all_logits(self, hidden: Any) -> Float32Array:
        """[L, D] -> [L, V]."""
        return self._tensors.numbers(self._model.head.logits(hidden))

    def _prompt_logprobs(self, plan: RowPlan, row: SamplingRow, step: ComputedStep, i: int) -> list[TokenLogprobs]:
        """Of the prompt's tokens after those that row i of the step computed."""
        assert row.num_prompt_logprobs is not None
        found: list[TokenLogprobs] = []
        end = min(plan.start + plan.num_tokens, row.num_prompt_tokens - 1)
        offset = step.query_starts[i] - plan.start
        for first in range(plan.start, end, PROMPT_LOGPROBS_CHUNK):
            last = min(first + PROMPT_LOGPROBS_CHUNK, end)
            logits = self._all_logits(step.hidden[offset + first : offset + last])
            found += self._sampler.prompt_logprobs(logits, row.token_ids[first + 1 : last + 1], row.num_prompt_logprobs)
        return found
