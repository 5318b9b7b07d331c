"""Which architectures quire reads, by Hugging Face class name and by GGUF architecture name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from quire.checkpoint.families import bert, gemma3, gpt2, llama, mistral, opt, qwen2, qwen3
from quire.checkpoint.families.fields import ConfigFields
from quire.checkpoint.families.gguf_header import GGUFHeader
from quire.checkpoint.families.gguf_names import TensorRule
from quire.checkpoint.gguf import GGUFTensor
from quire.checkpoint.model_config import ModelConfig
from quire.errors import CheckpointError, UnsupportedModelError


@dataclass(frozen=True, slots=True)
class Family:
    """`model_type` is config.json's; `read_gguf` and `gguf_names` are None where GGUF has no such architecture.

    The key in FAMILIES is the GGUF architecture name where there is one.
    """

    architecture: str
    model_type: str
    read: Callable[[ConfigFields], ModelConfig]
    read_gguf: Callable[[GGUFHeader], ModelConfig] | None = None
    gguf_names: Callable[[ModelConfig], list[TensorRule]] | None = None


FAMILIES: dict[str, Family] = {
    "llama": Family(llama.ARCHITECTURE, "llama", llama.read, llama.read_gguf, llama.gguf_names),
    "mistral": Family(mistral.ARCHITECTURE, "mistral", mistral.read),
    "qwen2": Family(qwen2.ARCHITECTURE, "qwen2", qwen2.read, qwen2.read_gguf, qwen2.gguf_names),
    "qwen3": Family(qwen3.ARCHITECTURE, "qwen3", qwen3.read, qwen3.read_gguf, qwen3.gguf_names),
    "gemma3": Family(gemma3.ARCHITECTURE, "gemma3_text", gemma3.read, gemma3.read_gguf, gemma3.gguf_names),
    "opt": Family(opt.ARCHITECTURE, "opt", opt.read),
    "gpt2": Family(gpt2.ARCHITECTURE, "gpt2", gpt2.read, gpt2.read_gguf, gpt2.gguf_names),
    "bert": Family(bert.ARCHITECTURE, "bert", bert.read),
}


def read_config(config_json: Mapping[str, Any], source: str) -> ModelConfig:
    """The model that a parsed config.json describes; `source` names it in messages.

    Raises UnsupportedModelError for an architecture, or a field, that quire does not implement, and CheckpointError
    for a config that is damaged or contradicts itself.
    """
    fields = ConfigFields(config_json, source)
    family = _find_family(fields)
    fields.must_be_absent("quantization_config")
    config = family.read(fields)
    if not config.is_encoder:
        fields.must_be("is_causal", True)
    _check_numbers(config, source)
    return config


def read_gguf_config(metadata: Mapping[str, Any], tensors: Mapping[str, GGUFTensor], source: str) -> ModelConfig:
    """The model that a GGUF file's header describes; errors as for `read_config`."""
    general = ConfigFields(metadata, source)
    readers = {name: family.read_gguf for name, family in FAMILIES.items() if family.read_gguf is not None}
    name = general.choice("general.architecture", {name: name for name in readers})
    header = GGUFHeader(metadata, tensors, source, name)
    header.fields.must_be("attention.causal", True)
    config = readers[name](header)
    _check_numbers(config, source)
    return config


def _find_family(fields: ConfigFields) -> Family:
    """By the first of `architectures`; older files have only a `model_type`."""
    names = fields.texts("architectures")
    if not names:
        by_model_type = {family.model_type: family for family in FAMILIES.values()}
        return fields.choice("model_type", by_model_type)
    by_architecture = {family.architecture: family for family in FAMILIES.values()}
    if names[0] not in by_architecture:
        raise UnsupportedModelError(
            f"{fields.source}: the architecture is {names[0]}; quire supports {', '.join(by_architecture)}."
        )
    return by_architecture[names[0]]


def _check_numbers(config: ModelConfig, source: str) -> None:
    """Contradictions, found before anything is allocated. Raises CheckpointError naming both numbers."""
    if config.num_heads % config.num_kv_heads:
        raise CheckpointError(
            f"{source}: {config.num_heads} attention heads cannot share {config.num_kv_heads} key/value heads evenly;"
            " the config is damaged, fetch it again."
        )
    for layer in config.layers:
        if layer.rope is not None and layer.rope.rotary_dim % 2:
            raise CheckpointError(
                f"{source}: the head size is {config.head_dim}, and rotary positions need an even one;"
                " the config is damaged, fetch it again."
            )
    for token_id in (config.bos_token_id, *config.eos_token_ids):
        if token_id is not None and token_id >= config.vocab_size:
            raise CheckpointError(
                f"{source}: the special token id {token_id} is beyond the vocabulary of {config.vocab_size} tokens;"
                " correct bos_token_id or eos_token_id."
            )
