"""A validated, tokenized request: what the faces hand to the engine, and the wire type between processes."""

from __future__ import annotations

import msgspec

from quire.core.sampling_params import BeamSearchParams, SamplingParams


class Request(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One prompt and how to continue it.

    `arrival_time` is seconds on the monotonic clock. A smaller `priority` runs first. `cache_salt`
    separates prefix-cache entries: requests share cached blocks only when their salts are equal.
    """

    request_id: str
    prompt_token_ids: list[int]
    sampling_params: SamplingParams
    beam_search: BeamSearchParams | None = None
    """Search over hypotheses instead of sampling; `sampling_params` then carries only what a hypothesis needs."""
    prompt: str | None = None
    eos_token_ids: list[int] = []
    max_num_tokens: int = 0
    """Prompt and output together, resolved from max_tokens and the context length."""
    seed: int = 0
    """The resolved seed: the caller's, or one the engine drew."""
    priority: int = 0
    arrival_time: float = 0.0
    cache_salt: str | None = None
    tenant: str = ""
    """Whom the work is charged to, for the `fair` scheduling policy."""
