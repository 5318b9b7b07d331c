"""The GGUF metadata that all decoders share."""

from __future__ import annotations

from quire.checkpoint.families.decoder import MAX_LAYERS, full_layers, split_heads
from quire.checkpoint.families.gguf_ends import read_end_token_ids
from quire.checkpoint.families.gguf_header import ROPE_DIVISORS, GGUFHeader
from quire.checkpoint.families.rope import DEFAULT_THETA
from quire.checkpoint.model_config import (
    Activation,
    LinearRopeScaling,
    ModelConfig,
    RopeConfig,
    RopeScaling,
    StoredRopeScaling,
)


def read_gguf_decoder(
    header: GGUFHeader,
    family: str,
    architecture: str,
    *,
    activation: Activation = "silu",
    default_theta: float = DEFAULT_THETA,
    norm_eps: str = "attention.layer_norm_rms_epsilon",
) -> ModelConfig:
    """A gated, RMS-normalized, rotary decoder with full attention; each family replaces what differs in it.

    `architecture` is the Hugging Face class that does the same; `norm_eps` is the name of that field.
    """
    fields = header.fields
    fields.must_be_absent("expert_count")
    hidden_size = fields.integer("embedding_length")
    num_heads = fields.integer("attention.head_count")
    head_dim = fields.optional_integer("attention.key_length")
    if head_dim is None:
        head_dim = split_heads(fields, "embedding_length", hidden_size, num_heads)
    fields.must_be("attention.value_length", head_dim)
    fields.must_be("rope.dimension_count", head_dim)
    num_layers = fields.integer("block_count", maximum=MAX_LAYERS)
    theta = fields.number("rope.freq_base", default_theta)
    rope = RopeConfig(theta=theta, rotary_dim=head_dim, scaling=_read_rope_scaling(header))
    vocab_size = header.vocab_size()
    return ModelConfig(
        family=family,
        architecture=architecture,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=fields.integer("feed_forward_length"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=fields.integer("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        max_position=fields.integer("context_length"),
        layers=full_layers(num_layers, rope=rope),
        activation=activation,
        norm_eps=fields.number(norm_eps),
        attention_scale=head_dim**-0.5,
        tie_word_embeddings=not header.has("output.weight"),
        torch_dtype=header.dtype(),
        bos_token_id=header.tokenizer.optional_integer("bos_token_id", minimum=0),
        eos_token_ids=read_end_token_ids(header.tokenizer, vocab_size),
        quantized_bytes=header.quantized_bytes(),
        num_float_values=header.num_float_values(),
        codeless=header.codeless(),
    )


def _read_rope_scaling(header: GGUFHeader) -> RopeScaling | None:
    """Llama 3's scaling is not in the metadata: its frequency divisors are a tensor."""
    if header.has(ROPE_DIVISORS):
        return StoredRopeScaling(tensor=ROPE_DIVISORS)
    fields = header.fields
    # Older files have a factor under another name, and those of any age may leave out of which type it is.
    factor = fields.optional_number("rope.scaling.factor") or fields.optional_number("rope.scale_linear")
    unless_named = "none" if factor is None else "linear"
    kind = fields.choice("rope.scaling.type", {"none": None, "linear": "linear"}, unless_named)
    return LinearRopeScaling(factor=fields.number("rope.scaling.factor", factor)) if kind else None
