"""The skeleton all families share: embed, run the layers, normalize. The head projects to the vocabulary, on request.

Shapes: T tokens of the step, L of them wanted, D hidden_size, E embedding_dim (D but for OPT-350m).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from quire.attention.backend import LayerKVCache
from quire.attention.forward_batch import ForwardBatch
from quire.checkpoint.model_config import ModelConfig
from quire.kernels.tensor import Tensor
from quire.layers.attention import Attention
from quire.layers.embedding import Embedding, Positions
from quire.layers.head import Head
from quire.layers.linear import Linear
from quire.layers.mlp import FeedForward
from quire.layers.norm import Norm
from quire.layers.rope import RotaryEmbedding, Rotation


class DecoderLayer(Protocol):
    def forward(self, x: Tensor, rotations: Sequence[Rotation], cache: LayerKVCache, batch: ForwardBatch) -> Tensor:
        """[T, D] -> [L, D] of the batch's queries."""


@dataclass(frozen=True, slots=True)
class PreNormLayer:
    """Normalizes what goes into attention and MLP; the residual passes untouched."""

    attention_norm: Norm
    attention: Attention
    mlp_norm: Norm
    mlp: FeedForward

    def forward(self, x: Tensor, rotations: Sequence[Rotation], cache: LayerKVCache, batch: ForwardBatch) -> Tensor:
        x = self.attention.forward(x, rotations, cache, batch, self.attention_norm, residual=batch.queries(x))
        return self.mlp.forward(x, self.mlp_norm, residual=x)


@dataclass(frozen=True, slots=True)
class PostNormLayer:
    """Normalizes after the residual is added, as the first transformers did."""

    attention: Attention
    attention_norm: Norm
    mlp: FeedForward
    mlp_norm: Norm

    def forward(self, x: Tensor, rotations: Sequence[Rotation], cache: LayerKVCache, batch: ForwardBatch) -> Tensor:
        x = self.attention_norm.forward(self.attention.forward(x, rotations, cache, batch, residual=batch.queries(x)))
        return self.mlp_norm.forward(self.mlp.forward(x, residual=x))


@dataclass(frozen=True, slots=True)
class SandwichNormLayer:
    """Normalizes what goes into attention and MLP and what comes out of them."""

    attention_norm: Norm
    attention: Attention
    attention_output_norm: Norm
    mlp_norm: Norm
    mlp: FeedForward
    mlp_output_norm: Norm

    def forward(self, x: Tensor, rotations: Sequence[Rotation], cache: LayerKVCache, batch: ForwardBatch) -> Tensor:
        attended = self.attention.forward(x, rotations, cache, batch, self.attention_norm)
        x = self.attention_output_norm.forward(attended, residual=batch.queries(x))
        return self.mlp_output_norm.forward(self.mlp.forward(x, self.mlp_norm), residual=x)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """`positions` are learned ones; `ropes` the distinct rotary embeddings that layers refer to by place.

    `input_projection` (E -> D) is there where E differs from D.
    """

    config: ModelConfig
    embedding: Embedding
    layers: Sequence[DecoderLayer]
    head: Head
    final_norm: Norm | None
    ropes: Sequence[RotaryEmbedding] = ()
    positions: Positions | None = None
    input_projection: Linear | None = None

    def forward(self, batch: ForwardBatch, kv: list[LayerKVCache]) -> Tensor:
        """Hidden states [L, D] of the last layer's queries; writes the step's K and V into `kv`, one cache a layer."""
        x = self._embed(batch)
        longest = max(batch.context_lens)
        rotations = [rope.rotation(batch.positions, longest) for rope in self.ropes]
        for layer, cache in zip(self.layers[:-1], kv[:-1], strict=True):
            x = layer.forward(x, rotations, cache, batch)
        x = self.layers[-1].forward(x, rotations, kv[-1], batch.last_layer or batch)
        return x if self.final_norm is None else self.final_norm.forward(x)

    def prepare(self, longest: int) -> None:
        """Make all tables for positions below `longest`: they stay where they are from then on."""
        for rope in self.ropes:
            rope.reach(longest)

    def _embed(self, batch: ForwardBatch) -> Tensor:
        x = self.embedding.forward(batch.token_ids)
        if self.config.embedding_scale != 1.0:
            x = x * self.config.embedding_scale
        if self.input_projection is not None:
            x = self.input_projection.forward(x)
        if self.positions is not None:
            x = x + self.positions.forward(batch.positions)
        return x
