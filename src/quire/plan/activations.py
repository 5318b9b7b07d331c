"""The memory of one step beside weights and KV: what the forward pass and the sampler hold at their peaks."""

from __future__ import annotations

from quire.checkpoint.model_config import ModelConfig


def activation_bytes(
    model: ModelConfig, *, bytes_per_element: int, num_tokens: int, num_rows: int, max_model_len: int
) -> int:
    """Peak of a step of `num_tokens` tokens in which `num_rows` rows sample."""
    forward = num_tokens * _forward_bytes_per_token(model, bytes_per_element)
    sampling = num_rows * model.vocab_size * 4 * 3
    return max(forward, sampling)


def _forward_bytes_per_token(model: ModelConfig, size: int) -> int:
    return 10 * model.hidden_size * size
