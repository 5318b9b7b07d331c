"""The typed description of a model, read from config.json or GGUF metadata: all that is read above, never raw JSON."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from quire.core.kv_layout import KVSpec

Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]
NormKind = Literal["rms_norm", "layer_norm"]
PoolingKind = Literal["mean", "cls"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3RopeScaling:
    """Frequency-dependent scaling of Llama 3.1 (Llama 3 herd of models, 2024)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearRopeScaling:
    """Positions divided by `factor` (position interpolation, Chen et al. 2023)."""

    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRopeScaling:
    """Each frequency is divided by a number of its own, kept beside the weights (GGUF of Llama 3.1 and later)."""

    tensor: str


RopeScaling = Llama3RopeScaling | LinearRopeScaling | StoredRopeScaling


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary embedding of one layer (Su et al. 2021), halves rotated as GPT-NeoX does."""

    theta: float
    rotary_dim: int
    scaling: RopeScaling | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerConfig:
    """What differs between layers. `window` None is full attention; `rope` None means learned positions."""

    window: int | None
    rope: RopeConfig | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingConfig:
    """How an encoder's hidden states become one vector of a text.

    `max_tokens` is the longest text it was tuned for, which may be less than its positions allow.
    """

    kind: PoolingKind
    normalize: bool
    max_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CodelessTensors:
    """A file's tensors of one type of few bits that only floats are made of."""

    type_name: str
    num_tensors: int
    num_values: int
    num_bytes: int
    """In the file."""


@dataclass(frozen=True, slots=True)
class WeightShape:
    """Of a linear layer, q, k and v being one and gate and up another, or of a table of the vocabulary."""

    num_outputs: int
    num_inputs: int
    is_table: bool = False

    @property
    def num_values(self) -> int:
        return self.num_outputs * self.num_inputs


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A transformer: a decoder, which continues texts, or an encoder (`pooling` is set), which makes vectors of them.

    `family` names the file in `quire.models`; `architecture` is the Hugging Face class name it was read from.
    `max_position` is the longest context the weights were trained for, in tokens.
    """

    family: str
    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    layers: tuple[LayerConfig, ...]
    activation: Activation
    norm_eps: float
    attention_scale: float
    """Scores are q . k * attention_scale."""
    tie_word_embeddings: bool
    norm: NormKind = "rms_norm"
    """RMSNorm has a weight; LayerNorm a weight and a bias."""
    inverse_layer_scale: bool = False
    """Layer i's scores are also divided by i + 1 (some GPT-2 checkpoints)."""
    attention_bias: bool = False
    """Bias on the q, k, v projections."""
    attention_output_bias: bool = False
    mlp_bias: bool = False
    gated_mlp: bool = True
    """down(act(gate(x)) * up(x)); otherwise down(act(up(x)))."""
    qk_norm: bool = False
    """RMSNorm on each q and k head before rope."""
    sandwich_norm: bool = False
    """A second norm after attention and after the MLP, before the residual is added (Gemma)."""
    final_norm: bool = True
    attention_logit_softcap: float | None = None
    final_logit_softcap: float | None = None
    embedding_scale: float = 1.0
    norm_before: bool = True
    """OPT-350m normalizes after the residual instead."""
    embedding_dim: int | None = None
    """Width of the token embedding where it differs from hidden_size (OPT-350m)."""
    position_offset: int = 0
    """Learned positions start at this row of their table (OPT: 2)."""
    torch_dtype: str = "float32"
    """The dtype the checkpoint was saved in; what `dtype=auto` starts from."""
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    quantized_bytes: int | None = None
    """Bytes of the tensors kept in the file's few bits, where it has such (GGUF)."""
    num_float_values: int = 0
    """Values of that file's other tensors, which become floats."""
    codeless: tuple[CodelessTensors, ...] = ()
    """What such a file has in types of few bits that quire has no codes of, by type."""
    pooling: PoolingConfig | None = None
    num_token_types: int = 0
    """Rows of the table of token types (BERT), added to every embedding; 0 without one."""
    embedding_norm: bool = False
    """A norm over the sum of the embeddings (BERT)."""

    @property
    def is_encoder(self) -> bool:
        """Tokens see those after them, whole texts are computed at once, and no KV is kept."""
        return self.pooling is not None

    @property
    def saved_in_few_bits(self) -> bool:
        """Whether any weights were, kept so or not."""
        return self.quantized_bytes is not None or bool(self.codeless)

    @property
    def default_context(self) -> int:
        """The longest text in tokens, unless told otherwise."""
        return self.max_position if self.pooling is None else self.pooling.max_tokens

    def kv_specs(self) -> list[KVSpec]:
        """One KV spec a layer; none for an encoder. A window no shorter than the context is full attention."""
        if self.is_encoder:
            return []
        windows = (layer.window for layer in self.layers)
        return [
            KVSpec(self.num_kv_heads, self.head_dim, None if window is None or window >= self.max_position else window)
            for window in windows
        ]

    def scale_of_layer(self, layer: int) -> float:
        """What layer `layer` (from 0) multiplies q . k with."""
        return self.attention_scale / (layer + 1) if self.inverse_layer_scale else self.attention_scale

    @property
    def num_positions(self) -> int:
        """Rows of the learned position table; 0 with rotary positions."""
        return 0 if self.layers[0].rope is not None else self.max_position + self.position_offset

    def weight_shapes(self) -> Counter[WeightShape]:
        """How many linear layers and tables have each shape. The token embedding and the projection to the vocabulary may be one."""
        width, hidden, inner = self.embedding_dim or self.hidden_size, self.hidden_size, self.intermediate_size
        num_tables = 1 if self.tie_word_embeddings else 2
        found = Counter({WeightShape(self.vocab_size, width, is_table=True): num_tables})
        if width != hidden:
            found.update((WeightShape(hidden, width), WeightShape(width, hidden)))
        of_a_layer = (
            WeightShape(self._qkv_size, hidden),
            WeightShape(hidden, self.head_dim * self.num_heads),
            WeightShape(self._gate_up_size, hidden),
            WeightShape(hidden, inner),
        )
        for shape in of_a_layer:
            found[shape] += self.num_layers
        return found

    def num_parameters(self) -> int:
        """Weights held in memory when loaded, norms and biases included, tied embeddings counted once."""
        norm = self.hidden_size * (1 if self.norm == "rms_norm" else 2)
        of_a_layer = norm * (4 if self.sandwich_norm else 2) + 2 * self.head_dim * self.qk_norm
        of_a_layer += self._qkv_size * self.attention_bias + self.hidden_size * self.attention_output_bias
        of_a_layer += (self._gate_up_size + self.hidden_size) * self.mlp_bias
        total = sum(shape.num_values * count for shape, count in self.weight_shapes().items())
        total += (self.num_positions + self.num_token_types) * self.hidden_size
        total += norm * (self.embedding_norm + self.final_norm)
        return total + self.num_layers * of_a_layer

    @property
    def _qkv_size(self) -> int:
        return self.head_dim * (self.num_heads + 2 * self.num_kv_heads)

    @property
    def _gate_up_size(self) -> int:
        return self.intermediate_size * (2 if self.gated_mlp else 1)
