"""transformers as the oracle: a model of theirs filled with the very weights quire reads."""

from __future__ import annotations

import numpy as np
import torch
from benchmarks.peers.convert import sizes
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, LlamaConfig, LlamaForCausalLM, PreTrainedModel
from transformers.initialization import no_init_weights

from quire.checkpoint.checkpoint import open_checkpoint
from quire.checkpoint.model_config import ModelConfig
from quire.checkpoint.weights import WeightSource


def load_transformers(reference: str, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """Any checkpoint of the Llama or Gemma 3 family quire can open, dequantized to `dtype`."""
    checkpoint = open_checkpoint(reference)
    with no_init_weights():  # Random ones take seconds, and each is replaced.
        model = _MAKERS[checkpoint.config.family](checkpoint.config)
    weights = checkpoint.open_weights()
    state = {name: read_tensor(weights, name) for name in weights.names()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected, unexpected
    assert all("rotary" in name or name == "lm_head.weight" for name in missing), missing
    model.tie_weights()
    model.generation_config.eos_token_id = list(checkpoint.config.eos_token_ids) or None
    model.generation_config.pad_token_id = 0
    return model.to(dtype).eval()


def read_tensor(weights: WeightSource, name: str) -> torch.Tensor:
    info = weights.info(name)
    array = np.array(weights.read(name, 0, info.shape[0]))
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if info.dtype == "bfloat16" else tensor


def _llama(config: ModelConfig) -> PreTrainedModel:
    rope = config.layers[0].rope
    assert rope is not None
    return LlamaForCausalLM(
        LlamaConfig(
            **sizes(config),
            rms_norm_eps=config.norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": rope.theta},
        )
    )


def _gemma3(config: ModelConfig) -> PreTrainedModel:
    full = next(layer for layer in config.layers if layer.window is None)
    sliding = next(layer for layer in config.layers if layer.window is not None)
    assert full.rope is not None
    assert sliding.rope is not None
    return Gemma3ForCausalLM(
        Gemma3TextConfig(
            **sizes(config),
            rms_norm_eps=config.norm_eps,
            sliding_window=sliding.window,
            query_pre_attn_scalar=round(config.attention_scale**-2),
            layer_types=["full_attention" if layer.window is None else "sliding_attention" for layer in config.layers],
            rope_parameters={
                "full_attention": {"rope_type": "default", "rope_theta": full.rope.theta},
                "sliding_attention": {"rope_type": "default", "rope_theta": sliding.rope.theta},
            },
        )
    )


_MAKERS = {"llama": _llama, "gemma3": _gemma3}
