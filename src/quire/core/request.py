"""A validated, tokenized request: what the faces hand to the engine, and the wire type between processes."""

from __future__ import annotations

import msgspec

from quire.core.sampling_params import SamplingParams


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt and how to continue it.

    `arrival_time` is seconds on the monotonic clock. A smaller `priority` runs first. `cache_salt`
    separates prefix-cache entries: requests share cached blocks only when their salts are equal.
    """

    request_id: str
    prompt_token_ids: list[int]
    sampling_params: SamplingParams
    prompt: str | None = None
    seed: int = 0
    """The resolved seed: the caller's, or one the engine drew."""
    priority: int = 0
    arrival_time: float = 0.0
    cache_salt: str | None = None
