"""How one GGUF tensor name answers to a Hugging Face one, and what the conversion to GGUF did to its numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_LAYER_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


@dataclass(frozen=True, slots=True)
class TensorRule:
    """Names without `.weight` or `.bias`, with `{}` for the number of the layer.

    `rotary_heads`: the rows are of so many heads, and within each the rows j and j + head_dim / 2, which rotate
    together, lie side by side. `offset` is added to what the file holds. `transposed`: the file holds outputs first
    where Hugging Face has inputs first.
    """

    gguf: str
    name: str
    rotary_heads: int | None = None
    offset: float = 0.0
    transposed: bool = False


@dataclass(frozen=True, slots=True)
class TensorOrigin:
    """The tensor of the GGUF file that a Hugging Face name stands for."""

    gguf: str
    rule: TensorRule


def match_names(gguf_names: Iterable[str], rules: list[TensorRule]) -> dict[str, TensorOrigin]:
    """Hugging Face name -> its origin. A tensor no rule knows keeps its name, so that the loader reports or takes it."""
    by_gguf = {rule.gguf: rule for rule in rules}
    origins = {}
    for gguf in gguf_names:
        stem, _, kind = gguf.rpartition(".")
        number = _LAYER_NUMBER.search(stem + ".")
        pattern = _LAYER_NUMBER.sub("{}", stem + ".", count=1)[:-1]
        rule = by_gguf.get(pattern, TensorRule(pattern, pattern))
        name = rule.name.replace("{}", number[0]) if number else rule.name
        origins[f"{name}.{kind}"] = TensorOrigin(gguf, rule)
    return origins


def gated_names(*, num_heads: int | None = None, num_kv_heads: int | None = None) -> list[TensorRule]:
    """Those of the Llama-like families. Head counts are given where q and k rows were paired for rotation."""
    layer, block = "model.layers.{}.", "blk.{}."
    return [
        TensorRule("token_embd", "model.embed_tokens"),
        TensorRule("output_norm", "model.norm"),
        TensorRule("output", "lm_head"),
        TensorRule(block + "attn_norm", layer + "input_layernorm"),
        TensorRule(block + "attn_q", layer + "self_attn.q_proj", rotary_heads=num_heads),
        TensorRule(block + "attn_k", layer + "self_attn.k_proj", rotary_heads=num_kv_heads),
        TensorRule(block + "attn_v", layer + "self_attn.v_proj"),
        TensorRule(block + "attn_output", layer + "self_attn.o_proj"),
        TensorRule(block + "ffn_norm", layer + "post_attention_layernorm"),
        TensorRule(block + "ffn_gate", layer + "mlp.gate_proj"),
        TensorRule(block + "ffn_up", layer + "mlp.up_proj"),
        TensorRule(block + "ffn_down", layer + "mlp.down_proj"),
    ]


QK_NORM_NAMES = [
    TensorRule("blk.{}.attn_q_norm", "model.layers.{}.self_attn.q_norm"),
    TensorRule("blk.{}.attn_k_norm", "model.layers.{}.self_attn.k_norm"),
]
