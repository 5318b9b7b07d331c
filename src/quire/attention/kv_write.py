"""Into the cache: one token's K and V a slot."""

from __future__ import annotations

import torch

from quire.attention.backend import LayerKVCache


def write_kv(cache: LayerKVCache, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor) -> None:
    """key, value [T, num_kv_heads, head_dim] to slots [T], each block * block_size + offset."""
    cache.key.flatten(0, 1).index_copy_(0, slots, key)
    cache.value.flatten(0, 1).index_copy_(0, slots, value)
