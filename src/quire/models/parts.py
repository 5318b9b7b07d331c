"""Layers made from a checkpoint: families name the tensors, this file knows their shapes and how they are joined."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from quire.attention.backend import AttentionBackend, AttentionShape
from quire.checkpoint.gguf.block_codes import BlockRows
from quire.checkpoint.model_config import ModelConfig, RopeConfig, StoredRopeScaling
from quire.kernels.ops import Ops
from quire.layers.attention import Attention, QKNorm
from quire.layers.embedding import Embedding, Positions
from quire.layers.head import Head
from quire.layers.linear import Linear
from quire.layers.mlp import MLP, GatedMLP
from quire.layers.norm import LayerNorm, Norm, RMSNorm
from quire.layers.rope import RotaryEmbedding
from quire.models.loader import WeightLoader
from quire.models.rotated_heads import HeadRotation, rotations_of_values
from quire.quantization.method import QuantMethod


@dataclass(frozen=True, slots=True)
class LoadedTensor:
    """A StoredWeight."""

    _loader: WeightLoader
    name: str
    num_outputs: int
    num_inputs: int
    _transposed: bool
    inputs_rotated: bool = False

    def pass_over(self) -> None:
        self._loader.pass_over(self.name)

    def fill(self, destination: Any) -> None:
        self._loader.fill(destination, self.name, transposed=self._transposed)

    def floats(self, num_rows: int) -> Iterator[npt.NDArray[np.float32]]:
        return self._loader.float_rows(self.name, num_rows, transposed=self._transposed)

    def blocks(self, fill: Callable[[BlockRows], bool]) -> bool:
        return self._loader.blocks(self.name, fill, transposed=self._transposed)


class ModelParts:
    """Tensor names are given without `.weight` and `.bias`.

    `transposed`: the checkpoint holds linear weights inputs first. `norm_offset` is added to norm weights.
    """

    def __init__(
        self,
        config: ModelConfig,
        loader: WeightLoader,
        ops: Ops,
        backend: AttentionBackend,
        method: QuantMethod,
        *,
        transposed: bool = False,
        norm_offset: float = 0.0,
    ) -> None:
        self.config = config
        self._loader = loader
        self._ops = ops
        self._backend = backend
        self._method = method
        self._transposed = transposed
        self._norm_offset = norm_offset
        self._embedding_name = ""
        self._ropes: list[RopeConfig] = list(
            dict.fromkeys(layer.rope for layer in config.layers if layer.rope is not None)
        )

    def embedding(self, name: str) -> Embedding:
        self._embedding_name = f"{name}.weight"
        shape = (self.config.vocab_size, self.config.embedding_dim or self.config.hidden_size)
        return Embedding(self._method.load_table(self._tensor(self._embedding_name, *shape), self._loader.dtype))

    def positions(self, name: str) -> Positions:
        shape = (self.config.num_positions, self.config.hidden_size)
        # OPT's positions start at row 2.
        weight = self._loader.take(f"{name}.weight", shape)[self.config.position_offset :]
        return Positions(self._ops, weight)

    def table(self, name: str, num_rows: int) -> Any:
        """[num_rows, D]."""
        return self._loader.take(f"{name}.weight", (num_rows, self.config.hidden_size))

    def pass_over(self, name: str) -> None:
        """Accept a tensor (by its whole name) that the model is known to do without."""
        self._loader.pass_over(name)

    def head(self, name: str, embedding: Embedding, projection: Linear | None = None) -> Head:
        """The projection to the vocabulary, which shares the memory of `embedding`, the last that was made, where the config ties them;
        after `projection` to the embedding's width."""
        table, name = embedding.table, f"{name}.weight"
        width = self.config.embedding_dim or self.config.hidden_size
        if not self.config.tie_word_embeddings:
            table = self._method.load_table(self._tensor(name, self.config.vocab_size, width), self._loader.dtype)
        elif self._loader.has(name):
            self._loader.drop_copy(name, self._embedding_name, (self.config.vocab_size, width))
        softcap = self.config.final_logit_softcap
        return Head(self._ops, table, projection, softcap, self._method.search(table) if softcap is None else None)

    def ropes(self) -> list[RotaryEmbedding]:
        """The distinct rotary embeddings of the layers."""
        return [
            RotaryEmbedding(rope, self._ops.tensors, self._loader.dtype, self._stored_divisors(rope))
            for rope in self._ropes
        ]

    def norm(self, name: str, width: int | None = None) -> Norm:
        """Over `width` values, hidden_size unless given."""
        shape = (width or self.config.hidden_size,)
        weight = self._loader.take(f"{name}.weight", shape, offset=self._norm_offset)
        if self.config.norm == "rms_norm":
            return RMSNorm(self._ops, weight, self.config.norm_eps)
        return LayerNorm(self._ops, weight, self._loader.take(f"{name}.bias", shape), self.config.norm_eps)

    def attention(
        self, layer: int, *, qkv: Sequence[str], output: str, qk_norm: tuple[str, str] | None = None
    ) -> Attention:
        """`qkv` names q, k and v apart, or one tensor that holds them in this order."""
        config, kind = self.config, self.config.layers[layer]
        q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        sizes = [q_size, kv_size, kv_size]
        of_values, of_output = None, None
        if len(qkv) == len(sizes):
            of_values, of_output = rotations_of_values(self._method, config.head_dim, config.hidden_size, q_size)
        shape = AttentionShape(
            layer=layer,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            scale=config.scale_of_layer(layer),
            window=kind.window,
            logit_softcap=config.attention_logit_softcap,
        )
        return Attention(
            self._ops,
            self._backend,
            shape,
            self.linear(
                qkv,
                sizes if len(qkv) == len(sizes) else [sum(sizes)],
                config.hidden_size,
                bias=config.attention_bias,
                heads=of_values,
            ),
            self.linear([output], [config.hidden_size], q_size, bias=config.attention_output_bias, heads=of_output),
            rope=None if kind.rope is None else self._ropes.index(kind.rope),
            qk_norm=None if qk_norm is None else QKNorm(*(self.norm(name, config.head_dim) for name in qk_norm)),
        )

    def gated_mlp(self, *, gate: str, up: str, down: str) -> GatedMLP:
        config = self.config
        inner = config.intermediate_size
        return GatedMLP(
            config.activation,
            self.linear([gate, up], [inner, inner], config.hidden_size, bias=config.mlp_bias),
            self.linear([down], [config.hidden_size], inner, bias=config.mlp_bias),
        )

    def mlp(self, *, up: str, down: str) -> MLP:
        config = self.config
        inner = config.intermediate_size
        return MLP(
            self._ops,
            config.activation,
            self.linear([up], [inner], config.hidden_size, bias=config.mlp_bias),
            self.linear([down], [config.hidden_size], inner, bias=config.mlp_bias),
        )

    def linear(
        self,
        names: Sequence[str],
        num_outputs: Sequence[int],
        num_inputs: int,
        *,
        bias: bool,
        heads: HeadRotation | None = None,
    ) -> Linear:
        """One linear layer whose outputs are those of all the named ones, in order."""
        parts = [
            self._tensor(f"{name}.weight", rows, num_inputs, transposed=self._transposed)
            for name, rows in zip(names, num_outputs, strict=True)
        ]
        weight = self._method.load(parts if heads is None else heads.weights(parts), self._loader.dtype)
        biases = None
        if bias:
            biases = self._ops.tensors.empty((sum(num_outputs),), self._loader.dtype)
            filled = biases.split_with_sizes(num_outputs, 0)
            for name, bias_of_name in zip(names, filled, strict=True):
                self._loader.fill(bias_of_name, f"{name}.bias")
            if heads is not None and not heads.of_inputs:
                of_values = self._loader.floats(f"{names[-1]}.bias", (num_outputs[-1],))
                self._ops.tensors.copy(filled[-1], heads.bias(of_values), "float32")
        return Linear(self._method, weight, biases)

    def _tensor(self, name: str, num_outputs: int, num_inputs: int, *, transposed: bool = False) -> LoadedTensor:
        self._loader.check_shape(name, (num_outputs, num_inputs), transposed=transposed)
        return LoadedTensor(self._loader, name, num_outputs, num_inputs, transposed)

    def _stored_divisors(self, rope: RopeConfig) -> npt.NDArray[np.float32] | None:
        if not isinstance(rope.scaling, StoredRopeScaling):
            return None
        return self._loader.floats(rope.scaling.tensor, (rope.rotary_dim // 2,))
