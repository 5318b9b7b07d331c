"""A tiny random checkpoint for every family and for every config field that changes the computation."""

from __future__ import annotations

import copy
from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    OPTConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

VOCAB_SIZE = 128
SIZES = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
OPT_SIZES = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "ffn_dim": 56,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "init_std": 0.3,
}
GPT2_SIZES = {
    "vocab_size": VOCAB_SIZE,
    "n_embd": 32,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 256,
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
SMALL_WINDOWS = {"use_sliding_window": True, "sliding_window": 12, "max_window_layers": 1}
GEMMA = SIZES | {"num_hidden_layers": 7, "sliding_window": 12, "query_pre_attn_scalar": 24, "head_dim": 16}

CONFIGS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**SIZES),
    "llama-tied": LlamaConfig(**SIZES, tie_word_embeddings=True),
    "llama-biases": LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True),
    "llama-multi-head": LlamaConfig(**(SIZES | {"num_key_value_heads": 4})),
    "llama-multi-query": LlamaConfig(**(SIZES | {"num_key_value_heads": 1})),
    "llama-head-dim": LlamaConfig(**SIZES, head_dim=12),
    "llama-gelu": LlamaConfig(**SIZES, hidden_act="gelu"),
    "llama-3": LlamaConfig(**SIZES, rope_parameters=LLAMA3_ROPE),
    "llama-linear-rope": LlamaConfig(
        **SIZES, rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}
    ),
    "mistral-window": MistralConfig(**SIZES, sliding_window=12),
    "mistral-full": MistralConfig(**SIZES, sliding_window=None),
    "qwen2": Qwen2Config(**SIZES),
    "qwen2-window": Qwen2Config(**SIZES, **SMALL_WINDOWS),
    "qwen3": Qwen3Config(**SIZES, head_dim=16),
    "qwen3-biases-window": Qwen3Config(**SIZES, head_dim=16, attention_bias=True, **SMALL_WINDOWS),
    "gemma3": Gemma3TextConfig(**GEMMA),
    "gemma3-softcaps": Gemma3TextConfig(**GEMMA, attn_logit_softcapping=2.0, final_logit_softcapping=3.0),
    "gemma3-untied-biases": Gemma3TextConfig(**GEMMA, tie_word_embeddings=False, attention_bias=True),
    "gemma3-layer-types": Gemma3TextConfig(
        **GEMMA, layer_types=["full_attention", "sliding_attention"] * 3 + ["full_attention"]
    ),
    "opt": OPTConfig(**OPT_SIZES),
    "opt-untied-gelu": OPTConfig(**OPT_SIZES, tie_word_embeddings=False, activation_function="gelu"),
    "opt-350m": OPTConfig(**OPT_SIZES, do_layer_norm_before=False, word_embed_proj_dim=20),
    "opt-no-final-norm": OPTConfig(**OPT_SIZES, _remove_final_layer_norm=True),
    "opt-no-biases": OPTConfig(**OPT_SIZES, enable_bias=False),
    "gpt2": GPT2Config(**GPT2_SIZES),
    "gpt2-untied": GPT2Config(**GPT2_SIZES, tie_word_embeddings=False, n_inner=72),
    "gpt2-layer-scale": GPT2Config(**GPT2_SIZES, scale_attn_by_inverse_layer_idx=True),
    "gpt2-unscaled": GPT2Config(**GPT2_SIZES, scale_attn_weights=False),
}


def make_model(name: str) -> PreTrainedModel:
    """Norms and biases are random too: transformers starts them at 1 and 0, where a mix-up would not show."""
    torch.manual_seed(0)
    # A copy: models write into their config (the dtype they are saved in).
    config = copy.deepcopy(CONFIGS[name])
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter += 0.2 * torch.randn_like(parameter)
    return model


@torch.inference_mode()
def oracle_logits(model: PreTrainedModel, token_ids: list[int]) -> torch.Tensor:
    """float32 [len(token_ids), V].

    transformers reads Gemma 3's attn_logit_softcapping but never hands it to its attention; passed along with the
    call, it arrives there.
    """
    softcap = model.config.to_dict().get("attn_logit_softcapping")
    options = {} if softcap is None else {"softcap": softcap}
    return model(torch.tensor([token_ids]), **options).logits[0]


def save_checkpoint(name: str, directory: Path, **options: object) -> PreTrainedModel:
    model = make_model(name)
    model.save_pretrained(directory, **options)
    return model
