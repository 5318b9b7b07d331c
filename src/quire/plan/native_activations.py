"""The memory of one step of the native kernels beside weights and KV.

T tokens and R sampling rows of the step, D hidden, I intermediate, V vocabulary, H and G query and KV heads of E values.
Programs lie on top of each other in one arena (kernels/recording.py), so the largest counts: the terms follow the arrays of
a layer that are in use at one time, and are checked against measurement by benchmarks/plan_accuracy.py.
"""

from __future__ import annotations

from quire.checkpoint.model_config import ModelConfig

ROWS_SEARCHED_FOR = 4
"""By one step, for most likely tokens."""
LONG_ROW_BYTES = 8192
"""Rows with more inputs than this many bytes of weights are multiplied a stretch of them at a time (csrc/linear.h)."""


def native_activation_bytes(model: ModelConfig, *, bytes_per_element: int, num_tokens: int, num_rows: int) -> int:
    """Peak of a step of `num_tokens` tokens in which `num_rows` rows sample."""
    step = num_tokens * _bytes_per_token(model, bytes_per_element)
    return step if model.is_encoder else step + num_rows * 4 * model.vocab_size + search_bytes(model)


def search_bytes(model: ModelConfig) -> int:
    """What is made to search for most likely tokens (kernels/native_sketch.py): 4 bits and a share of a scale for each weight
    of the table and 32 more, two numbers for each token, and twice the logits of a few rows."""
    width = model.embedding_dim or model.hidden_size
    if model.final_logit_softcap is not None or width % 32 or width <= 32:
        return 0
    return model.vocab_size * ((width + 32) * 9 // 16 + 2 * 4 + 2 * ROWS_SEARCHED_FOR * 4)


def _bytes_per_token(model: ModelConfig, size: int) -> int:
    """Residual and norm 2 D, and one half of a layer: attention's projections and output (2 H + 2 G) E, or the MLP's and what is made
    of them; and the inputs of the MLP's last layer once more, as that multiplies them, with its sums where these are kept."""
    query, key = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    inner = model.intermediate_size
    mlp = (3 if model.gated_mlp else 2) * inner
    kept_sums = 4 * model.hidden_size if size * inner > LONG_ROW_BYTES and model.hidden_size <= inner else 0
    return size * (2 * model.hidden_size + max(2 * query + 2 * key, mlp) + inner) + kept_sums
