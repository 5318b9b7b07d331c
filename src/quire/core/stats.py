"""What the engine counts, for metrics and load figures. A wire type (msgspec): it crosses from the engine process."""

from __future__ import annotations

from bisect import bisect_left

import msgspec

STEP_TOKEN_BOUNDS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
"""Upper bounds of the histogram of tokens a step."""


class StepTokens(msgspec.Struct):
    """How many tokens steps computed: `counts[i]` steps had at most STEP_TOKEN_BOUNDS[i] (and more than the bound
    before it); the last entry counts those beyond all bounds."""

    counts: list[int] = msgspec.field(default_factory=lambda: [0] * (len(STEP_TOKEN_BOUNDS) + 1))
    total: int = 0

    def add(self, num_tokens: int) -> None:
        self.counts[bisect_left(STEP_TOKEN_BOUNDS, num_tokens)] += 1
        self.total += num_tokens


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """A moment of one engine. Those under `Totals` only grow, from the engine's start on; the others go up and down.

    `num_blocks` are those that can be handed out: free + cached + held.
    """

    num_running: int = 0
    num_waiting: int = 0
    """Not running yet, preempted ones included."""
    num_preempted: int = 0
    """Preempted and waiting to run again."""
    num_blocks: int = 0
    num_free_blocks: int = 0
    num_cached_blocks: int = 0
    num_held_blocks: int = 0

    # Totals
    num_prompt_tokens: int = 0
    """Of the prompts that were started, cached tokens included."""
    num_generation_tokens: int = 0
    num_preemptions: int = 0
    num_prefix_query_tokens: int = 0
    num_prefix_hit_tokens: int = 0
    num_external_query_tokens: int = 0
    """Prompt tokens looked up outside the engine's own memory, and below, how many of them were found."""
    num_external_hit_tokens: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_accepted_tokens_per_position: list[int] = []
    step_tokens: StepTokens = msgspec.field(default_factory=StepTokens)

    def of_ended_engine(self) -> EngineStats:
        """What is left when it has ended: its totals."""
        return msgspec.structs.replace(
            self,
            num_running=0,
            num_waiting=0,
            num_preempted=0,
            num_blocks=0,
            num_free_blocks=0,
            num_cached_blocks=0,
            num_held_blocks=0,
        )

    @property
    def kv_cache_usage(self) -> float:
        """Share of the blocks that sequences hold, 0 to 1."""
        return self.num_held_blocks / self.num_blocks if self.num_blocks else 0.0
