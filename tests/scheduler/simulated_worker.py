"""An executor that keeps a model of the KV cache: what every slot of every block holds, step by step.

The KV of a token depends on all tokens before it, so a slot's content is the identity of the whole prefix. A row that
reads anything but its own tokens, in any KV group, in any position its attention reaches, is a bug in control.
"""

from __future__ import annotations

from collections import deque

from quire.core.kv_layout import NULL_BLOCK, KVCacheConfig
from quire.core.step import NewRow, RowPlan, RowResult, SampleError, StepPlan, StepResult

NOT_FINITE = "not finite"
Slot = tuple[int, int]


def prefix_identities(token_ids: list[int], known: list[int]) -> None:
    """Extend `known` so that known[i] identifies token_ids[: i + 1]."""
    for token_id in token_ids[len(known) :]:
        known.append(hash((known[-1] if known else 0, token_id)))


def sample(prefix_identity: int, seed: int, vocab_size: int) -> int:
    return hash((prefix_identity, seed)) % vocab_size


def expected_output(prompt: list[int], num_tokens: int, seed: int, vocab_size: int) -> list[int]:
    """The tokens that follow a prompt however it is scheduled."""
    token_ids, identities = list(prompt), list[int]()
    while len(token_ids) < num_tokens:
        prefix_identities(token_ids, identities)
        token_ids.append(sample(identities[-1], seed, vocab_size))
    return token_ids


class SimulatedRow:
    def __init__(self, new: NewRow) -> None:
        self.token_ids = list(new.token_ids)
        self.identities: list[int] = []
        self.seed = new.seed
        self.tables = [list(table) for table in new.block_ids]


class SimulatedWorker:
    def __init__(self, config: KVCacheConfig, vocab_size: int = 5) -> None:
        self.rows: dict[int, SimulatedRow] = {}
        self.failing: set[int] = set()
        """Sequences whose next computation is not finite."""
        self.without_tokens: set[int] = set()
        """Sequences whose requests leave them no token to sample."""
        self.num_computed_tokens = 0
        self._config = config
        self._vocab_size = vocab_size
        self._content: dict[Slot, int | str] = {}
        self._results: deque[StepResult] = deque()

    def prepare_grammar(self, grammar: str, timeout_s: float) -> bool:
        return True

    def allocate_kv_cache(self, config: KVCacheConfig) -> None:
        assert config == self._config

    def submit(self, plan: StepPlan) -> None:
        """Computes at once; the result waits until it is collected."""
        self._change_rows(plan)
        self._copy_blocks(plan.block_copies)
        written: set[Slot] = set()
        for row in plan.rows:
            self._write(row, written)
        assert plan.num_tokens == sum(row.num_tokens for row in plan.rows)
        self.num_computed_tokens += plan.num_tokens
        self._results.append(StepResult(plan.step_id, [self._read_and_sample(row) for row in plan.rows]))

    def collect(self) -> StepResult:
        return self._results.popleft()

    def shutdown(self) -> None:
        self._results.clear()

    def _change_rows(self, plan: StepPlan) -> None:
        for seq_id in plan.released_seq_ids:
            del self.rows[seq_id]
        for new in plan.new_rows:
            assert new.seq_id not in self.rows, "a row is added twice"
            self.rows[new.seq_id] = SimulatedRow(new)
        added = {new.seq_id for new in plan.new_rows}
        assert added <= {row.seq_id for row in plan.rows}, "a new row that is not computed"
        assert len({row.seq_id for row in plan.rows}) == len(plan.rows), "one sequence in two rows"
        for row in plan.rows:
            if row.new_block_ids is not None:
                assert row.seq_id not in added, "a new row's blocks come with it"
                for table, block_ids in zip(self.rows[row.seq_id].tables, row.new_block_ids, strict=True):
                    table += block_ids

    def _copy_blocks(self, copies: list[tuple[int, int]]) -> None:
        destinations = [destination for _, destination in copies]
        assert len(set(destinations)) == len(destinations), "two copies to one block"
        assert NULL_BLOCK not in destinations
        offsets = range(self._config.block_size)
        self._content |= {(d, o): self._content.get((s, o), 0) for s, d in copies for o in offsets}

    def _slot(self, table: list[int], position: int) -> Slot:
        block = table[position // self._config.block_size]
        assert block != NULL_BLOCK, f"position {position} has no block"
        return block, position % self._config.block_size

    def _write(self, plan: RowPlan, written: set[Slot]) -> None:
        row = self.rows[plan.seq_id]
        end = plan.start + plan.num_tokens
        assert plan.num_tokens > 0
        assert end <= len(row.token_ids), "a token is computed before it is known"
        assert plan.samples == (end == len(row.token_ids)), "a row samples if and only if it reaches the newest token"
        prefix_identities(row.token_ids, row.identities)
        for table in row.tables:
            for position in range(plan.start, end):
                slot = self._slot(table, position)
                assert slot not in written, "two rows write one slot"
                written.add(slot)
                self._content[slot] = NOT_FINITE if plan.seq_id in self.failing else row.identities[position]

    def _read_and_sample(self, plan: RowPlan) -> RowResult:
        row = self.rows[plan.seq_id]
        end = plan.start + plan.num_tokens
        finite = True
        for group, table in zip(self._config.groups, row.tables, strict=True):
            window = group.spec.window
            first = 0 if window is None else max(0, plan.start - window + 1)
            for position in range(first, end):
                content = self._content[self._slot(table, position)]
                finite = finite and content != NOT_FINITE
                assert content in (row.identities[position], NOT_FINITE), (
                    f"sequence {plan.seq_id} reads another's token at {position} of {group}"
                )
        if not finite:
            self._spoil(row, plan)
            error = SampleError("not_finite", "The logits are not finite.") if plan.samples else None
            return RowResult(plan.seq_id, [], error=error)
        if not plan.samples:
            return RowResult(plan.seq_id, [])
        if plan.seq_id in self.without_tokens:
            return RowResult(plan.seq_id, [], error=SampleError("nothing_left", "No token is left."))
        token_id = sample(row.identities[-1], row.seed, self._vocab_size)
        row.token_ids.append(token_id)
        return RowResult(plan.seq_id, [token_id])

    def _spoil(self, row: SimulatedRow, plan: RowPlan) -> None:
        """What is computed from KV that is not finite is not finite either; a token comes out all the same."""
        for table in row.tables:
            for position in range(plan.start, plan.start + plan.num_tokens):
                self._content[self._slot(table, position)] = NOT_FINITE
        if plan.samples:
            row.token_ids.append(0)
