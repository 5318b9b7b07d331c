"""What every attention backend offers. Capabilities are data: `select` compares them with what a model needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from quire.attention.forward_batch import ForwardBatch
from quire.kernels.dtype import DType

ALL_DTYPES = frozenset({DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16})


@dataclass(frozen=True, slots=True)
class AttentionCapabilities:
    """What a backend can do and what it promises."""

    dtypes: frozenset[DType]
    sliding_window: bool
    logit_softcap: bool
    bitwise_dtypes: frozenset[DType]
    """Dtypes in which a row's result does not depend on the batch, the chunking, or the history of the cache."""
    rotates: bool = False
    """Whether `attend` takes the step's rotation: queries and keys are then rotated where keys are written."""
    int8_kv: bool = False
    """Whether the cache may hold codes of 8 bits instead of the model's dtype."""


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """The constants of one layer's attention."""

    layer: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int | None
    logit_softcap: float | None


@dataclass(slots=True)
class LayerKVCache:
    """The KV of one layer: key and value [num_blocks, block_size, num_kv_heads, values_per_head(head_dim)]."""

    key: Any
    value: Any


class AttentionBackend(Protocol):
    """Writes the step's K and V into the cache, then attends over it."""

    name: str
    capabilities: AttentionCapabilities

    def attend(
        self,
        query: Any,
        key: Any,
        value: Any,
        cache: LayerKVCache,
        shape: AttentionShape,
        batch: ForwardBatch,
        rotation: tuple[Any, Any] | None = None,
    ) -> Any:
        """query [T, num_heads, head_dim], key and value [T, num_kv_heads, head_dim] -> [L, num_heads * head_dim] of the step's L
        queries.

        Every row's KV is written before any row reads, so rows of one step may share blocks that one of them writes.
        `rotation`, cos and sin as Ops.rope's, is given to what `rotates`; query and key are then given up.
        """
