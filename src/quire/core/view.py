"""What the engine shows of itself while somebody watches. Wire types (msgspec): they cross from the engine process.

A `ViewUpdate` tells what changed since the one before it; one with a `layout` starts over and needs nothing before it.
"""

from __future__ import annotations

import enum
from typing import Literal

import msgspec

MAX_STEPS_KEPT = 4096
"""By the engine, for somebody who begins to watch, and by each API process."""

LaneStatus = Literal["waiting", "running", "preempted", "kept"]
"""Kept: finished, but holding its blocks because another sequence may still fork it."""


class BlockState(enum.IntEnum):
    """Private: one sequence holds it. Shared: several do. Cached: nobody does, but its content can be found."""

    FREE = 0
    CACHED = 1
    PRIVATE = 2
    SHARED = 3


class KVGroupView(msgspec.Struct, frozen=True):
    """Layers that share block tables. `window` is in tokens; None where every token is kept."""

    num_layers: int
    window: int | None


class EngineLayout(msgspec.Struct, frozen=True):
    """What does not change while the engine runs. `num_blocks` counts those that can be handed out: 1 ... num_blocks."""

    num_blocks: int
    block_size: int
    bytes_per_block: int
    kv_groups: list[KVGroupView]
    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int


class StepRecord(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One step. Times in seconds, `end_time` on the engine's monotonic clock.

    `num_decode_tokens` counts rows that computed one token and sampled, `num_sampled` all rows that sampled.
    """

    step_id: int
    end_time: float
    duration: float
    num_prefill_tokens: int
    num_decode_tokens: int
    num_sampled: int
    num_rows: int


class TableChange(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A block table from entry `start` on: `block_ids` replace all that was there.

    Entries before `first_kept` hold no block any more: they left the sliding window.
    """

    start: int
    first_kept: int
    block_ids: list[int]


class Lane(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One sequence. Token counts as in `Sequence`; times on the engine's monotonic clock.

    `tables`: one change a KV group; None if nothing changed, empty if the sequence holds no blocks.
    """

    seq_id: int
    request_id: str
    index: int
    status: LaneStatus
    num_prompt_tokens: int
    num_known: int
    num_computed: int
    num_cached_tokens: int
    num_preemptions: int
    max_num_tokens: int
    arrival_time: float
    first_scheduled_time: float | None
    tables: list[TableChange] | None


class ViewUpdate(msgspec.Struct, frozen=True):
    """The lanes are all there are (up to a limit on the waiting), in the order in which they will run.

    `block_states`: with a layout, one byte (BlockState) for each block 1 ... num_blocks; otherwise those of
    `changed_blocks`. `time` is the engine's monotonic clock.
    """

    time: float
    layout: EngineLayout | None
    steps: list[StepRecord]
    lanes: list[Lane]
    changed_blocks: list[int]
    block_states: bytes
    num_waiting: int
    num_running: int
    num_preemptions: int
    num_prefix_query_tokens: int
    num_prefix_hit_tokens: int
