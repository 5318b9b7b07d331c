"""Contradictions between the numbers of a model config, found before anything is allocated."""

from __future__ import annotations

from quire.checkpoint.model_config import ModelConfig
from quire.errors import CheckpointError


def check_model_config(config: ModelConfig, source: str) -> None:
    """Raises CheckpointError naming both numbers."""
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
