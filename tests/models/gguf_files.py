"""Writes a transformers model as the GGUF file that llama.cpp's converter would make of it, in float32."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedConfig, PreTrainedModel

ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "mistral": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA3,
    "gpt2": gguf.MODEL_ARCH.GPT2,
}


def save_gguf(model: PreTrainedModel, path: Path, types: Mapping[str, gguf.GGMLQuantizationType] | None = None) -> None:
    """`types`: of tensors, by their names in the file, that get random values of these instead."""
    config = model.config
    architecture = ARCHITECTURES[config.model_type]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[architecture])
    write_metadata(writer, config, file_type=2 if types else 0)
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    for name, tensor in model.state_dict().items():
        if name not in tied:
            gguf_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
            assert gguf_name is not None, name
            values = np.ascontiguousarray(convert(config, name, tensor.numpy()))
            if types and gguf_name in types:
                writer.add_tensor(gguf_name, random_blocks(values.shape, types[gguf_name]), raw_dtype=types[gguf_name])
            else:
                writer.add_tensor(gguf_name, values)
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "llama3":
        plain = 1.0 / rope["rope_theta"] ** (torch.arange(0, config.head_dim, 2).float() / config.head_dim)
        writer.add_tensor("rope_freqs.weight", (plain / model.model.rotary_emb.inv_freq).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def random_blocks(shape: tuple[int, ...], kind: gguf.GGMLQuantizationType) -> npt.NDArray[np.uint8]:
    """Of a type whose blocks start with a float16 scale."""
    per_block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    blocks = np.random.default_rng(0).integers(0, 256, (*shape[:-1], shape[-1] // per_block, block_bytes), np.uint8)
    blocks[..., :2] = np.array([0.002], np.float16).view(np.uint8)
    return blocks.reshape(*shape[:-1], -1)


def write_metadata(writer: gguf.GGUFWriter, config: PreTrainedConfig, *, file_type: int) -> None:
    writer.add_file_type(file_type)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_uint32("tokenizer.ggml.eos_token_id", 2)
    if config.model_type == "gpt2":
        writer.add_feed_forward_length(config.n_inner or 4 * config.n_embd)
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
        return
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    if config.model_type == "gemma3_text":
        writer.add_rope_freq_base(config.rope_parameters["full_attention"]["rope_theta"])
        writer.add_sliding_window(config.sliding_window)
        return
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    if config.rope_parameters["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(config.rope_parameters["factor"])
    if config.model_type == "mistral" and config.sliding_window:
        writer.add_sliding_window(config.sliding_window)


def convert(config: PreTrainedConfig, name: str, tensor: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """What the converter does to the numbers."""
    if config.model_type in ("llama", "mistral") and (".q_proj." in name or ".k_proj." in name):
        num_heads = config.num_attention_heads if ".q_proj." in name else config.num_key_value_heads
        halves = tensor.reshape(num_heads, 2, -1, *tensor.shape[1:])
        return halves.swapaxes(1, 2).reshape(tensor.shape)
    if config.model_type == "gemma3_text" and name.endswith("norm.weight"):
        return tensor + 1
    if config.model_type == "gpt2" and ".h." in name and tensor.ndim == 2:
        return tensor.T
    return tensor
