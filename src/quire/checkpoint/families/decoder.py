"""The fields that Llama, Mistral, Qwen and Gemma share, with transformers' names and defaults."""

from __future__ import annotations

from quire.checkpoint.families.fields import LARGEST_INTEGER, ConfigFields
from quire.checkpoint.families.rope import read_rope
from quire.checkpoint.model_config import Activation, LayerConfig, LinearRopeScaling, ModelConfig, RopeConfig

MAX_LAYERS = 4096
ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
DTYPES = ("float32", "bfloat16", "float16")
DEFAULT_WINDOW = 4096
FULL, SLIDING = "full_attention", "sliding_attention"


def read_decoder(
    fields: ConfigFields,
    family: str,
    architecture: str,
    *,
    head_dim: int | None = None,
    activation_field: str = "hidden_act",
    default_activation: str = "silu",
) -> ModelConfig:
    """A gated, RMS-normalized, rotary decoder with full attention; each family replaces what differs in it."""
    hidden_size = fields.integer("hidden_size")
    num_heads = fields.integer("num_attention_heads")
    if head_dim is None:
        head_dim = fields.optional_integer("head_dim")
    if head_dim is None:
        head_dim = split_heads(fields, "hidden_size", hidden_size, num_heads)
    max_position = fields.integer("max_position_embeddings")
    num_layers = fields.integer("num_hidden_layers", maximum=MAX_LAYERS)
    rope = read_rope(fields, head_dim=head_dim, max_position=max_position)
    return ModelConfig(
        family=family,
        architecture=architecture,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=fields.integer("num_key_value_heads", num_heads),
        head_dim=head_dim,
        max_position=_stretched(fields, max_position, rope),
        layers=full_layers(num_layers, rope=rope),
        activation=fields.choice(activation_field, ACTIVATIONS, default_activation),
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        attention_scale=head_dim**-0.5,
        tie_word_embeddings=fields.flag("tie_word_embeddings", False),
        torch_dtype=read_dtype(fields),
        bos_token_id=fields.optional_integer("bos_token_id", minimum=0),
        eos_token_ids=fields.token_ids("eos_token_id"),
    )


def _stretched(fields: ConfigFields, max_position: int, rope: RopeConfig) -> int:
    """max_position_embeddings is the context without position interpolation: transformers documents it so, and vLLM reads it
    so."""
    factor = rope.scaling.factor if isinstance(rope.scaling, LinearRopeScaling) else 1.0
    stretched = max_position * factor
    if not 1 <= stretched <= LARGEST_INTEGER:
        raise fields.damaged(
            "max_position_embeddings", f"from 1 to {LARGEST_INTEGER} when multiplied by the factor {factor}"
        )
    return int(stretched)


def split_heads(fields: ConfigFields, name: str, hidden_size: int, num_heads: int) -> int:
    """Size of a head where the config leaves it to be derived."""
    if hidden_size % num_heads:
        raise fields.damaged(name, f"a multiple of the number of attention heads, {num_heads}")
    return hidden_size // num_heads


def read_dtype(fields: ConfigFields) -> str:
    """transformers 5 writes `dtype`, earlier ones `torch_dtype`. Anything else is computed in float32."""
    dtype = fields.text("dtype") or fields.text("torch_dtype")
    return dtype if dtype in DTYPES else "float32"


def full_layers(num_layers: int, *, rope: RopeConfig | None) -> tuple[LayerConfig, ...]:
    """Each with full attention."""
    return (LayerConfig(window=None, rope=rope),) * num_layers


def read_window(fields: ConfigFields) -> int | None:
    """A config without the field has transformers' default; only null says that there is none."""
    return None if fields.is_null("sliding_window") else fields.integer("sliding_window", DEFAULT_WINDOW)


def read_layer_types(fields: ConfigFields, num_layers: int) -> list[str] | None:
    """`full_attention` or `sliding_attention` for each layer, where the config lists them."""
    kinds = fields.texts("layer_types")
    if kinds is None:
        return None
    if len(kinds) != num_layers:
        raise fields.damaged("layer_types", f"{num_layers} names, one a layer")
    if not set(kinds) <= {FULL, SLIDING}:
        raise fields.unsupported("layer_types", f"the types {FULL} and {SLIDING}")
    return kinds
