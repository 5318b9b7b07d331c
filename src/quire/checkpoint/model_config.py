"""The typed description of a decoder, read from config.json or GGUF metadata. Everything above reads this, never raw JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from quire.core.kv_layout import FullAttentionSpec, KVSpec, SlidingWindowSpec

Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]


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
class RopeConfig:
    """Rotary embedding of one layer (Su et al. 2021), halves rotated as GPT-NeoX does."""

    theta: float
    rotary_dim: int
    scaling: Llama3RopeScaling | LinearRopeScaling | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerConfig:
    """What differs between layers. `window` None is full attention; `rope` None means learned positions."""

    window: int | None
    rope: RopeConfig | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A decoder-only transformer.

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
    attention_bias: bool = False
    """Bias on the q, k, v projections."""
    attention_output_bias: bool = False
    mlp_bias: bool = False
    gated_mlp: bool = True
    """down(act(gate(x)) * up(x)); otherwise down(act(up(x)))."""
    qk_norm: bool = False
    """RMSNorm on each q and k head before rope."""
    attention_logit_softcap: float | None = None
    final_logit_softcap: float | None = None
    embedding_scale: float = 1.0
    norm_before: bool = True
    """OPT-350m normalizes after the residual instead."""
    embedding_dim: int | None = None
    """Width of the token embedding where it differs from hidden_size (OPT-350m)."""
    torch_dtype: str = "float32"
    """The dtype the checkpoint was saved in; what `dtype=auto` starts from."""
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    quantized_bytes: int | None = None
    """Bytes of the tensors in the file, where they are quantized (GGUF)."""

    def kv_specs(self) -> list[KVSpec]:
        """One KV spec a layer. A window no shorter than the context is full attention."""
        return [
            FullAttentionSpec(self.num_kv_heads, self.head_dim)
            if layer.window is None or layer.window >= self.max_position
            else SlidingWindowSpec(self.num_kv_heads, self.head_dim, layer.window)
            for layer in self.layers
        ]

    def num_parameters(self) -> int:
        """Weights held in memory when loaded, tied embeddings counted once."""
        attention = self.hidden_size * self.head_dim * (2 * self.num_heads + 2 * self.num_kv_heads)
        if self.attention_bias:
            attention += self.head_dim * (self.num_heads + 2 * self.num_kv_heads)
        if self.attention_output_bias:
            attention += self.hidden_size
        mlp = (3 if self.gated_mlp else 2) * self.hidden_size * self.intermediate_size
        embedding = self.vocab_size * (self.embedding_dim or self.hidden_size)
        positions = 0 if self.layers[0].rope is not None else self.max_position * self.hidden_size
        return self.num_layers * (attention + mlp) + embedding * (1 if self.tie_word_embeddings else 2) + positions
