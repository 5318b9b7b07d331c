"""What control asks of one step, and what compute answers. Both are wire types (msgspec)."""

from __future__ import annotations

from typing import Literal

import msgspec

from quire.core.sampling_params import SamplingParams


class SampleError(msgspec.Struct, frozen=True):
    """Why no token could be sampled for a row; as a str it is the sentence for whoever asked.

    `not_finite`: the model's logits are not, and so its KV may not be either. `nothing_left`: the request allows no token.
    `grammar`: what follows the request's grammar failed.
    """

    cause: Literal["not_finite", "nothing_left", "grammar"]
    sentence: str

    def __str__(self) -> str:
        return self.sentence


class NewRow(msgspec.Struct, frozen=True):
    """A sequence the worker has no row for: first admission, resumption after preemption, or a fork.

    `block_ids[g]` is the whole block table of KV group g so far; an entry may be NULL_BLOCK where a sliding
    layer no longer needs the block.
    """

    seq_id: int
    token_ids: list[int]
    num_prompt_tokens: int
    sampling_params: SamplingParams
    stop_token_ids: list[int]
    """EOS (unless ignored) and the request's own: what min_tokens must hold back."""
    seed: int
    block_ids: list[list[int]]


class RowPlan(msgspec.Struct):
    """Compute tokens [start, start + num_tokens) of one sequence in this step.

    `samples`: the range ends at the newest token, so a token is sampled from its last position.
    `new_block_ids[g]`: blocks appended to group g's table since the last plan; None when there are none (and for
    a row that is new in this step, whose NewRow carries them all).
    """

    seq_id: int
    start: int
    num_tokens: int
    samples: bool
    new_block_ids: list[list[int]] | None = None


class StepPlan(msgspec.Struct):
    """One step, in the order the worker carries it out: release rows, add rows, copy blocks, then compute `rows`."""

    step_id: int
    rows: list[RowPlan]
    new_rows: list[NewRow]
    released_seq_ids: list[int]
    block_copies: list[tuple[int, int]]
    """(source, destination) block ids, copied in every layer before anything is computed (copy on write).

    All sources are read before any destination is written: a block may be both, for different sequences."""
    num_tokens: int

    @property
    def num_rows(self) -> int:
        return len(self.rows)


class TokenLogprobs(msgspec.Struct, frozen=True):
    """Logprobs at one position: the chosen token first, then the top ones (the chosen may appear again).

    `ranks[i]` is 1 for the most likely token of the vocabulary.
    """

    token_ids: list[int]
    logprobs: list[float]
    ranks: list[int]


class RowResult(msgspec.Struct):
    """What one row of the plan produced, in the plan's order.

    `token_ids` is empty when the row did not sample. `prompt_logprobs` covers prompt positions
    start + 1 ... start + num_tokens (those that are prompt tokens): each is the logprob of the token at that
    position given the ones before it. With an `error` the row was not sampled, and the sequence ends.
    """

    seq_id: int
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None
    error: SampleError | None = None


class StepResult(msgspec.Struct):
    step_id: int
    rows: list[RowResult]
