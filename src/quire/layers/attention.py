"""Self-attention of one layer: project, normalize and rotate heads, attend over the paged KV, project back.

H heads, G key/value heads, E head_dim, D hidden_size, T tokens, L queries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quire.attention.backend import AttentionBackend, AttentionShape, LayerKVCache
from quire.attention.forward_batch import ForwardBatch
from quire.kernels.ops import Ops
from quire.kernels.tensor import Tensor
from quire.layers.linear import Linear
from quire.layers.norm import Norm
from quire.layers.rope import Rotation


@dataclass(frozen=True, slots=True)
class QKNorm:
    """Norms over the E values of each head."""

    query: Norm
    key: Norm


class Attention:
    """`rope` is the layer's place in the step's rotations; None means the positions were added to the embeddings."""

    __slots__ = ("backend", "heads", "ops", "output", "qk_norm", "qkv", "rope", "shape")

    def __init__(
        self,
        ops: Ops,
        backend: AttentionBackend,
        shape: AttentionShape,
        qkv: Linear,
        output: Linear,
        *,
        rope: int | None,
        qk_norm: QKNorm | None = None,
    ) -> None:
        self.ops = ops
        self.backend = backend
        self.shape = shape
        self.qkv = qkv
        self.output = output
        self.rope = rope
        self.qk_norm = qk_norm
        self.heads = (shape.num_heads, shape.num_kv_heads, shape.num_kv_heads)

    def forward(
        self,
        x: Tensor,
        rotations: Sequence[Rotation],
        cache: LayerKVCache,
        batch: ForwardBatch,
        norm: Norm | None = None,
        residual: Tensor | None = None,
    ) -> Tensor:
        """[T, D] -> [L, D] of the batch's queries, of `norm` of x, added to `residual`, which is given up (as Linear's)."""
        projected = self.qkv.forward(x, norm)
        heads = projected.view(projected.shape[0], sum(self.heads), self.shape.head_dim)
        query, key, value = heads.split_with_sizes(self.heads, 1)
        if self.qk_norm is not None:
            query, key = self.qk_norm.query.forward(query), self.qk_norm.key.forward(key)
        rotation = None if self.rope is None else rotations[self.rope]
        if rotation is not None and not self.backend.capabilities.rotates:
            query, key, rotation = self.ops.rope(query, *rotation), self.ops.rope(key, *rotation), None
        attended = self.backend.attend(query, key, value, cache, self.shape, batch, rotation)
        return self.output.forward(attended, residual=residual)
