"""From a StepPlan to a StepResult: gather the batch, run the model, sample."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from quire.attention.forward_batch import ForwardBatch, RowBlocks
from quire.core.kv_layout import KVCacheConfig
from quire.core.step import RowPlan, RowResult, StepPlan, StepResult, TokenLogprobs
from quire.kernels.tensor import Tensors
from quire.models.registry import Model
from quire.sampling.grammar import Grammars
from quire.sampling.logprobs import prompt_logprobs
from quire.sampling.sampler import Sampler
from quire.worker.kv_cache import KVCache
from quire.worker.row_table import Row, RowTable
from quire.worker.step_programs import StepPrograms

PROMPT_LOGPROBS_CHUNK = 128
"""Positions whose logits over the vocabulary are held at once."""


class ModelRunner:
    """Owns the rows and the KV cache of one model."""

    def __init__(
        self,
        model: Model,
        kv_config: KVCacheConfig,
        kv: KVCache,
        tensors: Tensors,
        max_num_seqs: int,
        max_model_len: int,
        grammars: Grammars | None = None,
        *,
        records_steps: bool = False,
    ) -> None:
        """`records_steps`: those that can be run as programs, without Python."""
        self._model = model
        self._kv = kv
        self._tensors = tensors
        self._block_size = kv_config.block_size
        self._sampler = Sampler(model.config.vocab_size)
        self._table = RowTable(kv_config, max_num_seqs, max_model_len, grammars)
        group_of_layer = {layer: g for g, group in enumerate(kv_config.groups) for layer in group.layers}
        self._layer_groups = [group_of_layer[layer] for layer in range(len(group_of_layer))]
        self._programs = (
            StepPrograms(model, kv, self._layer_groups, max_model_len, self._block_size) if records_steps else None
        )

    def execute(self, plan: StepPlan) -> StepResult:
        with self._tensors.computing():
            return self._execute(plan)

    def _execute(self, plan: StepPlan) -> StepResult:
        self._apply_changes(plan)
        rows = [self._table.rows[row_plan.seq_id] for row_plan in plan.rows]
        for row_plan, row in zip(plan.rows, rows, strict=True):
            if row_plan.samples:
                row.sampling.prepare()
        batch = self._gather(plan.rows, rows)
        hidden = self._forward(batch)
        results = [RowResult(row_plan.seq_id, []) for row_plan in plan.rows]
        self._sample(plan.rows, rows, hidden, batch, results)
        self._prompt_logprobs(plan.rows, rows, hidden, batch, results)
        return StepResult(plan.step_id, results)

    def _forward(self, batch: ForwardBatch) -> Any:
        hidden = None if self._programs is None else self._programs.forward(batch)
        return self._model.forward(batch, self._kv.layers) if hidden is None else hidden

    def _apply_changes(self, plan: StepPlan) -> None:
        for seq_id in plan.released_seq_ids:
            self._table.release(seq_id)
        for new in plan.new_rows:
            self._table.add(new)
        for row_plan in plan.rows:
            if row_plan.new_block_ids is not None:
                self._table.append_blocks(self._table.rows[row_plan.seq_id], row_plan.new_block_ids)
        if plan.block_copies:
            self._kv.copy_blocks(plan.block_copies)

    def _gather(self, plans: list[RowPlan], rows: list[Row]) -> ForwardBatch:
        """Token ids, positions, block tables and KV slots of the planned ranges, all by array indexing."""
        table_rows = np.array([row.table_row for row in rows])
        starts = np.array([row_plan.start for row_plan in plans])
        counts = np.array([row_plan.num_tokens for row_plan in plans])
        ends = np.cumsum(counts)
        context_lens = starts + counts
        row_of_token = np.repeat(np.arange(len(rows)), counts)
        positions = np.arange(ends[-1]) - np.repeat(ends - counts - starts, counts)
        width = -(-int(context_lens.max()) // self._block_size)
        groups = []
        for table in self._table.tables:
            tables = table[table_rows, :width]
            blocks = tables[row_of_token, positions // self._block_size]
            slots = blocks * self._block_size + positions % self._block_size
            groups.append(RowBlocks(self._tensors.of(tables), self._tensors.of(slots)))
        sampled = np.array([row_plan.samples for row_plan in plans])
        return ForwardBatch(
            token_ids=self._tensors.of(self._table.tokens[table_rows[row_of_token], positions]),
            positions=self._tensors.of(positions),
            query_starts=[0, *ends.tolist()],
            context_lens=context_lens.tolist(),
            groups=groups,
            layer_groups=self._layer_groups,
            logits_indices=self._tensors.of(ends[sampled] - 1),
        )

    def _sample(
        self, plans: list[RowPlan], rows: list[Row], hidden: Any, batch: ForwardBatch, results: list[RowResult]
    ) -> None:
        sampling = [i for i, row_plan in enumerate(plans) if row_plan.samples]
        if not sampling:
            return
        logits = self._model.logits(hidden[batch.logits_indices])
        tokens = self._sampler.sample(self._tensors.numbers(logits), [rows[i].sampling for i in sampling])
        for i, token in zip(sampling, tokens, strict=True):
            if token.error is not None:
                results[i].error = token.error
                continue
            self._table.append_token(rows[i], token.token_id)
            results[i].token_ids.append(token.token_id)
            if token.logprobs is not None:
                results[i].logprobs = [token.logprobs]

    def _prompt_logprobs(
        self, plans: list[RowPlan], rows: list[Row], hidden: Any, batch: ForwardBatch, results: list[RowResult]
    ) -> None:
        for i, (row_plan, row) in enumerate(zip(plans, rows, strict=True)):
            num_logprobs = row.sampling.params.prompt_logprobs
            if num_logprobs is None:
                continue
            found: list[TokenLogprobs] = []
            for first, last in _chunks(
                row_plan.start, min(row_plan.start + row_plan.num_tokens, row.sampling.num_prompt_tokens - 1)
            ):
                offset = batch.query_starts[i] - row_plan.start
                logits = self._model.logits(hidden[offset + first : offset + last])
                found += prompt_logprobs(
                    self._tensors.numbers(logits), row.token_ids[first + 1 : last + 1], num_logprobs
                )
            results[i].prompt_logprobs = found


def _chunks(start: int, stop: int) -> Iterator[tuple[int, int]]:
    for first in range(start, stop, PROMPT_LOGPROBS_CHUNK):
        yield first, min(first + PROMPT_LOGPROBS_CHUNK, stop)
