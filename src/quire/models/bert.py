"""BERT (Devlin et al. 2019): an encoder, LayerNorm after the residual, learned positions and token types.

Shapes: T tokens of the step, D hidden_size, I intermediate_size, P positions, S token types, V vocab_size.
  word_embeddings [V, D]   position_embeddings [P, D]   token_type_embeddings [S, D]
  query, key, value, attention.output.dense [D, D]   intermediate.dense [I, D]   output.dense [D, I], with biases
  norms [D], weight and bias
The pooler, a layer over the first token trained for sentence pairs, is no part of an embedding and is not loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quire.attention.backend import LayerKVCache
from quire.attention.forward_batch import ForwardBatch
from quire.checkpoint.model_config import ModelConfig
from quire.kernels.tensor import Tensor
from quire.layers.embedding import Embedding, Positions
from quire.layers.norm import Norm
from quire.models.decoder import PostNormLayer
from quire.models.parts import ModelParts

NO_CACHE = LayerKVCache(None, None)
"""An encoder keeps none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BertEncoder:
    """An Encoder. `token_type` [D] is that of a single text, type 0."""

    config: ModelConfig
    embedding: Embedding
    positions: Positions
    token_type: Tensor
    embedding_norm: Norm
    layers: Sequence[PostNormLayer]

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Hidden states [T, D]."""
        x = self.embedding.forward(batch.token_ids)
        x = x + self.token_type.expand(*x.shape) + self.positions.forward(batch.positions)
        x = self.embedding_norm.forward(x)
        for layer in self.layers:
            x = layer.forward(x, (), NO_CACHE, batch)
        return x


def build(parts: ModelParts) -> BertEncoder:
    prefix = "bert.embeddings."
    for name in ("weight", "bias"):
        parts.pass_over(f"bert.pooler.dense.{name}")
    return BertEncoder(
        config=parts.config,
        embedding=parts.embedding(prefix + "word_embeddings"),
        positions=parts.positions(prefix + "position_embeddings"),
        token_type=parts.table(prefix + "token_type_embeddings", parts.config.num_token_types)[0],
        embedding_norm=parts.norm(prefix + "LayerNorm"),
        layers=[_layer(parts, layer) for layer in range(parts.config.num_layers)],
    )


def _layer(parts: ModelParts, layer: int) -> PostNormLayer:
    prefix = f"bert.encoder.layer.{layer}."
    names = prefix + "attention.self."
    return PostNormLayer(
        attention=parts.attention(
            layer,
            qkv=[names + "query", names + "key", names + "value"],
            output=prefix + "attention.output.dense",
        ),
        attention_norm=parts.norm(prefix + "attention.output.LayerNorm"),
        mlp=parts.mlp(up=prefix + "intermediate.dense", down=prefix + "output.dense"),
        mlp_norm=parts.norm(prefix + "output.LayerNorm"),
    )
