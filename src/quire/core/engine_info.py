"""What a client may know of the engine it talks to. A wire type (msgspec)."""

from __future__ import annotations

from typing import Literal

import msgspec


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Fixed once the engine has loaded. Lengths are in tokens."""

    model: str
    task: Literal["generate", "embed"]
    dtype: str
    backend: str
    num_threads: int
    max_model_len: int
    block_size: int
    num_blocks: int
    max_num_batched_tokens: int
    max_num_seqs: int
    scheduling_policy: str
    enable_prefix_caching: bool
    max_concurrency: float
    """Sequences of max_model_len tokens that the KV cache holds at once."""
