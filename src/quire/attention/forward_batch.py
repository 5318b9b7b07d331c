"""The tensors of one step, as layers and attention see them. Layers get `(x, batch)`; there is no global context (ADR 4).

They are torch's or Arrays, as the ops of the model take.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class RowBlocks:
    """Where one KV group keeps the rows of this step.

    block_tables: int64 [R, max blocks]; entries past a row's end are NULL_BLOCK.
    slots: int64 [T], where each token's KV goes: block * block_size + offset.
    """

    block_tables: Any
    slots: Any


@dataclass(slots=True)
class ForwardBatch:
    """T tokens of R rows, row after row. All write their K and V; those that attend and go on are the queries: all, but for a
    last layer of whose hidden states only some are wanted.

    token_ids, positions: int64 [T].
    query_starts: R + 1 offsets into the queries; row r's are query_starts[r]:query_starts[r + 1], its last tokens.
    context_lens: per row, tokens with KV once this step has written its own: start + num_tokens.
    groups: per KV group; layer_groups: layer -> its KV group.
    scratch: what an attention backend derives once a step and reads again in every layer (masks, tiles).
    select: [T, ...] -> those of the queries; None where they are all.
    last_layer: the same step, of fewer queries; None where all are wanted.
    """

    token_ids: Any
    positions: Any
    query_starts: list[int]
    context_lens: list[int]
    groups: list[RowBlocks]
    layer_groups: list[int]
    scratch: dict[Any, Any] = field(default_factory=dict)
    select: Callable[[Any], Any] | None = None
    last_layer: ForwardBatch | None = None

    @property
    def num_rows(self) -> int:
        return len(self.context_lens)

    def queries(self, x: T) -> T:
        """[T, ...] -> those of the queries."""
        return x if self.select is None else self.select(x)

    def of_last_tokens(self, select: Callable[[Any], Any], scratch: dict[Any, Any] | None = None) -> ForwardBatch:
        """The same step with one query a row, its last token; `select`: [T, ...] -> [R, ...]."""
        starts = list(range(self.num_rows + 1))
        return replace(self, query_starts=starts, scratch=scratch or {}, select=select, last_layer=None)
