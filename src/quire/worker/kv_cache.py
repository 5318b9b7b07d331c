"""The memory behind the blocks: one K and one V tensor a slot, seen layer by layer."""

from __future__ import annotations

import numpy as np

from quire.attention.backend import LayerKVCache
from quire.core.kv_layout import KVCacheConfig, KVCacheDType, values_per_head
from quire.kernels.tensor import Tensors


class KVCache:
    """`layers[i]` is layer i's view; layers of different groups that use the same slot share its memory.

    They never meet: a block belongs to one group of one sequence (or is shared by sequences within that group).
    """

    def __init__(self, config: KVCacheConfig, num_layers: int, tensors: Tensors, dtype: KVCacheDType) -> None:
        spec = config.groups[0].spec
        shape = (config.num_blocks, config.block_size, spec.num_kv_heads, values_per_head(spec.head_dim, dtype))
        own = tensors.dtype(dtype)
        self.slots = [
            LayerKVCache(tensors.zeros(shape, own), tensors.zeros(shape, own)) for _ in range(config.slots_per_block)
        ]
        slot_of_layer = {layer: slot for group in config.groups for slot, layer in enumerate(group.layers)}
        self.layers = [self.slots[slot_of_layer[layer]] for layer in range(num_layers)]

    def copy_blocks(self, copies: list[tuple[int, int]]) -> None:
        """Copy whole blocks (source, destination) in every slot; all sources are read before any is overwritten."""
        source, destination = np.array(copies).T
        for slot in self.slots:
            slot.key[destination] = slot.key[source]
            slot.value[destination] = slot.value[source]
