"""The memory behind the blocks: one K and one V tensor a slot, seen layer by layer."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import numpy as np

from quire.attention.backend import LayerKVCache
from quire.core.kv_layout import KVCacheConfig, KVCacheDType, values_per_head
from quire.host.interrupts import DeferredInterrupt
from quire.kernels.tensor import Tensors

Made = TypeVar("Made")


class KVCache:
    """`layers[i]` is layer i's view; layers of different groups that use the same slot share its memory.

    They never meet: a block belongs to one group of one sequence (or is shared by sequences within that group).
    """

    def __init__(
        self,
        config: KVCacheConfig,
        num_layers: int,
        tensors: Tensors,
        dtype: KVCacheDType,
        *,
        touched_by_threads: int = 0,
    ) -> None:
        """The system gives memory out as blocks are first written, or at once to so many threads."""
        self.config = config
        spec = config.groups[0].spec
        shape = (config.num_blocks, config.block_size, spec.num_kv_heads, values_per_head(spec.head_dim, dtype))
        make = partial(tensors.zeros, shape, tensors.dtype(dtype), touched=touched_by_threads > 0)
        count = 2 * config.slots_per_block
        made = _side_by_side(make, count, touched_by_threads) if touched_by_threads else [make() for _ in range(count)]
        self.slots = [LayerKVCache(key, value) for key, value in zip(made[::2], made[1::2], strict=True)]
        slot_of_layer = {layer: slot for group in config.groups for slot, layer in enumerate(group.layers)}
        self.layers = [self.slots[slot_of_layer[layer]] for layer in range(num_layers)]

    def copy_blocks(self, copies: list[tuple[int, int]]) -> None:
        """Copy whole blocks (source, destination) in every slot; all sources are read before any is overwritten."""
        source, destination = np.array(copies).T
        for slot in self.slots:
            slot.key[destination] = slot.key[source]
            slot.value[destination] = slot.value[source]


def _side_by_side(make: Callable[[], Made], count: int, num_threads: int) -> list[Made]:
    # A Ctrl-C that broke off the handing out of work would leave threads that wait for ever.
    with DeferredInterrupt(), ThreadPoolExecutor(num_threads, "quire-touch") as threads:
        return [future.result() for future in [threads.submit(make) for _ in range(count)]]
