"""The memory of one step in torch beside weights and KV: what the forward pass and the sampler hold at their peaks.

T tokens and R sampling rows of the step, D hidden, I intermediate, V vocabulary, H and G query and KV heads of E values.
The terms follow the tensors that `layers/`, `attention/torch_work.py` and `sampling/` keep alive at one time; they are
checked against measurement by benchmarks/plan_accuracy.py.
"""

from __future__ import annotations

from quire.checkpoint.model_config import ModelConfig

ALLOCATOR_SLACK = 1.4
"""What the C allocator holds for freed tensors of other sizes, as a factor on what is live (measured)."""

QUERY_TILE = 256
"""Queries whose mask attention widens to the model's dtype at once."""

BUCKET_TOKENS = 4096
"""Cached tokens that attention gathers at once for rows of one query."""

SAMPLER_BYTES = 12 * 2**20
"""The sampler works through the rows in chunks of 4 MiB of weights, and holds about three such arrays."""


def activation_bytes(
    model: ModelConfig, *, bytes_per_element: int, num_tokens: int, num_rows: int, max_model_len: int
) -> int:
    """Peak of a step of `num_tokens` tokens in which `num_rows` rows sample."""
    size = bytes_per_element
    masks = num_tokens * max_model_len
    attention = num_tokens * _attention_bytes_per_token(model, size) + _gathered_bytes(model, size, max_model_len)
    mlp = num_tokens * _mlp_bytes_per_token(model, size)
    head = num_tokens * model.hidden_size * size + num_rows * 4 * model.vocab_size + SAMPLER_BYTES
    return int(ALLOCATOR_SLACK * (masks + max(attention, mlp, head)))


def _attention_bytes_per_token(model: ModelConfig, size: int) -> int:
    """Residual and norm 2 D; projections (H + 2 G) E; normed and rotated copies of q and k; output and a copy of it."""
    query = model.num_heads * model.head_dim
    key = model.num_kv_heads * model.head_dim
    copies = (2 if model.qk_norm else 1) * (query + key)
    projected = query + 2 * key
    return size * (2 * model.hidden_size + projected + copies + 2 * query) + _accumulator_bytes(projected, size)


def _gathered_bytes(model: ModelConfig, size: int, max_model_len: int) -> int:
    """K, V and int64 slots of a row's whole context, or of a bucket of short ones; the mask of one tile."""
    per_token = 2 * model.num_kv_heads * model.head_dim * size + 8
    return max(BUCKET_TOKENS, max_model_len) * per_token + QUERY_TILE * max_model_len * size


def _mlp_bytes_per_token(model: ModelConfig, size: int) -> int:
    """Residual, norm and output 3 D; gate and up, and the activated gate."""
    inner = model.intermediate_size
    projected = (2 if model.gated_mlp else 1) * inner
    return size * (3 * model.hidden_size + projected + inner) + _accumulator_bytes(projected, size)


def _accumulator_bytes(num_outputs: int, size: int) -> int:
    """A 16-bit matrix product is summed in float32 and rounded at the end."""
    return 0 if size == 4 else 4 * num_outputs
