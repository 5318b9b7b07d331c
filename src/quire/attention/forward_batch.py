"""The tensors of one step, as layers and attention see them. Layers get `(x, batch)`; there is no global context (ADR 4).

They are torch's or Arrays, as the ops of the model take.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


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
    """T tokens of R rows, row after row.

    token_ids, positions: int64 [T].
    query_starts: R + 1 offsets into T; row r's tokens are query_starts[r]:query_starts[r + 1].
    context_lens: per row, tokens with KV once this step has written its own: start + num_tokens.
    groups: per KV group; layer_groups: layer -> its KV group.
    scratch: what an attention backend derives once a step and reads again in every layer (masks, tiles).
    """

    token_ids: Any
    positions: Any
    query_starts: list[int]
    context_lens: list[int]
    groups: list[RowBlocks]
    layer_groups: list[int]
    scratch: dict[Any, Any] = field(default_factory=dict)

    @property
    def num_rows(self) -> int:
        return len(self.context_lens)

    @property
    def num_tokens(self) -> int:
        return self.query_starts[-1]
