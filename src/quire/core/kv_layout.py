"""How the KV cache is laid out: which layers share a block, what a block costs, how many fit.

Layers that keep the same span of tokens have the same spec. They are cut into groups of equally many layers, and
every group of a sequence has a block table of its own, but all tables draw on one pool: a block is `block_size`
tokens of K and V for the layers of *one* group, so every block has the same size and memory moves freely between
full-attention and sliding-window layers. (The hybrid KV cache manager of vLLM works alike.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

NULL_BLOCK = 0
"""Block 0 is never handed out: a table entry that nothing reads any more points to it."""

KVCacheDType = Literal["float32", "bfloat16", "float16", "int8"]
"""`int8`: K and V of a token and head are codes with one scale, a bfloat16."""
KVCacheDTypeChoice = Literal["auto", "int8"]
"""`auto`: the model's dtype."""
BYTES_PER_ELEMENT: dict[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}
SCALE_BYTES = 2


@dataclass(frozen=True, slots=True)
class KVSpec:
    """What a layer keeps of each token. With a `window`, position p attends to positions p - window + 1 ... p, and older KV is dropped."""

    num_kv_heads: int
    head_dim: int
    window: int | None = None


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Layers that share block tables. `layers[s]` uses slot s of a block; at most `slots_per_block` of them."""

    spec: KVSpec
    layers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KVCacheConfig:
    """The layout both towers agree on. `num_blocks` counts NULL_BLOCK, so `num_blocks - 1` can be handed out."""

    block_size: int
    num_blocks: int
    groups: tuple[KVGroup, ...]
    slots_per_block: int
    bytes_per_block: int

    @property
    def layer_groups(self) -> list[int]:
        """Layer -> its group."""
        group_of_layer = {layer: g for g, group in enumerate(self.groups) for layer in group.layers}
        return [group_of_layer[layer] for layer in range(len(group_of_layer))]


def group_layers(specs: list[KVSpec]) -> tuple[KVGroup, ...]:
    """Cut the layers into groups of one spec and (nearly) one size.

    The group size is the largest one that wastes at most a tenth of the slots, so that tables stay few:
    30 full layers make one group; 15 sliding and 3 full make 5 + 1 groups of 3. No layers (an encoder's keep no KV)
    make no group.
    """
    if not specs:
        return ()
    by_spec: dict[KVSpec, list[int]] = {}
    for layer, spec in enumerate(specs):
        by_spec.setdefault(spec, []).append(layer)
    shapes = {(spec.num_kv_heads, spec.head_dim) for spec in by_spec}
    assert len(shapes) == 1, f"layers of different KV shapes cannot share blocks: {shapes}"

    def num_groups(size: int) -> int:
        return sum(-(-len(layers) // size) for layers in by_spec.values())

    largest = max(len(layers) for layers in by_spec.values())
    size = next(s for s in range(largest, 0, -1) if num_groups(s) * s <= 1.1 * len(specs))
    return tuple(
        KVGroup(spec, tuple(layers[i : i + size]))
        for spec, layers in by_spec.items()
        for i in range(0, len(layers), size)
    )


def values_per_head(head_dim: int, dtype: str) -> int:
    """What K (or V) of one token and head takes, counted in values of the dtype: those of int8 are followed by their scale."""
    return head_dim + (SCALE_BYTES if dtype == "int8" else 0)


def bytes_per_block(groups: tuple[KVGroup, ...], block_size: int, dtype: KVCacheDType) -> int:
    """K and V of `block_size` tokens in every slot of one block."""
    if not groups:
        return 0
    spec = groups[0].spec
    per_head = values_per_head(spec.head_dim, dtype) * BYTES_PER_ELEMENT[dtype]
    return 2 * slots_per_block(groups) * block_size * spec.num_kv_heads * per_head


def slots_per_block(groups: tuple[KVGroup, ...]) -> int:
    return max((len(group.layers) for group in groups), default=0)


def num_blocks_per_sequence(groups: tuple[KVGroup, ...], block_size: int, num_tokens: int, max_chunk: int = 1) -> int:
    """Blocks one sequence of `num_tokens` holds at most, over all groups.

    A sliding group holds the window before the newest chunk, the chunk itself (`max_chunk` tokens), and a
    partly used block at either end.
    """
    total = 0
    for group in groups:
        kept = num_tokens
        if group.spec.window is not None:
            kept = min(num_tokens, group.spec.window - 1 + max_chunk + block_size - 1)
        total += -(-kept // block_size)
    return total


def make_kv_cache_config(
    specs: list[KVSpec], *, block_size: int, dtype: KVCacheDType, num_blocks: int
) -> KVCacheConfig:
    groups = group_layers(specs)
    return KVCacheConfig(
        block_size=block_size,
        num_blocks=num_blocks,
        groups=groups,
        slots_per_block=slots_per_block(groups),
        bytes_per_block=bytes_per_block(groups, block_size, dtype),
    )
