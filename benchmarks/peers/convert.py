"""The same weights for every engine: the built-in GGUF, its dequantized values, and what others make of those.

`file` is the file itself, SmolLM2's: Q4_1 with a Q8_0 head. Everything else is made from the values it stands for, so that
a difference in quality is the engine's or the further rounding's, never the checkpoint's.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.engines.peer import Environment, InstallError

from quire.checkpoint.checkpoint import Checkpoint, open_checkpoint
from quire.checkpoint.model_config import ModelConfig
from quire.checkpoint.pull import pull
from quire.checkpoint.tokenizer_files import TokenizerFiles


@dataclass(frozen=True, slots=True)
class Weights:
    """The forms of one model below `folder`, made when first asked for."""

    model: str
    folder: Path

    def path(self, form: str, environment: Environment) -> Path:
        """`environment` is the engine's own, whose tools convert to its own format. Raises InstallError."""
        if form == "file":
            return pull(self.model)
        target = self.folder / form
        if not (target / ".complete").exists():
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir(parents=True)
            try:
                self._make(form, target, environment)
            except (OSError, ValueError, ImportError) as error:
                raise InstallError(f"the weights could not be made: {type(error).__name__}: {error}") from error
            (target / ".complete").touch()
        return next(target.glob("*.gguf"), target)

    def _make(self, form: str, target: Path, environment: Environment) -> None:
        kind, _, precision = form.partition("-")
        match kind:
            case "hf":
                write_hugging_face(open_checkpoint(self.model), target, precision)
            case "gguf":
                write_gguf(pull(self.model), target / f"model-{precision}.gguf", precision)
            case "openvino":
                convert_openvino(environment, self.path("hf-float32", environment), target, precision)
            case "onnx":
                convert_onnx(environment, self.path("hf-float32", environment), target, precision)
            case _:
                raise ValueError(f"There is no form of weights {form!r}.")


def write_hugging_face(checkpoint: Checkpoint, target: Path, dtype: str) -> None:
    """config.json, the tokenizer, and the dequantized weights as safetensors of `dtype`."""
    import torch
    from safetensors.torch import save_file

    weights = checkpoint.open_weights()
    arrays = {name: weights.read(name, 0, weights.info(name).shape[0]) for name in weights.names()}
    tensors = {name: torch.tensor(array, dtype=getattr(torch, dtype)) for name, array in arrays.items()}
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
    weights.close()
    _write_json(target / "config.json", hugging_face_config(checkpoint.config, dtype))
    _write_json(
        target / "generation_config.json",
        {"bos_token_id": checkpoint.config.bos_token_id, "eos_token_id": list(checkpoint.config.eos_token_ids)},
    )
    write_tokenizer(checkpoint.tokenizer, target)


def sizes(config: ModelConfig) -> dict[str, Any]:
    """By the names that config.json has for them."""
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_position,
        "tie_word_embeddings": config.tie_word_embeddings,
    }


def hugging_face_config(config: ModelConfig, dtype: str) -> dict[str, Any]:
    rope = config.layers[0].rope
    if config.family != "llama" or rope is None or rope.scaling is not None:
        raise ValueError(f"only plain Llama models are converted, not {config.architecture}")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **sizes(config),
        "hidden_act": "silu",
        "rms_norm_eps": round(config.norm_eps, 9),
        "rope_theta": rope.theta,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": config.eos_token_ids[0],
        "torch_dtype": dtype,
    }


def write_tokenizer(tokenizer: TokenizerFiles, target: Path) -> None:
    (target / "tokenizer.json").write_bytes(tokenizer.tokenizer_json)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": tokenizer.chat_templates.get("default"),
        "clean_up_tokenization_spaces": False,
        **tokenizer.special_tokens,
    }
    _write_json(target / "tokenizer_config.json", config)
    _write_json(target / "special_tokens_map.json", dict(tokenizer.special_tokens))


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")


def write_gguf(source: Path, target: Path, precision: str) -> None:
    """The file with its matrices in another type; those that have it already are copied as they are."""
    import gguf

    wanted = gguf.GGMLQuantizationType[precision.upper()]
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for field in reader.fields.values():
        # The writer adds these itself.
        if field.name in ("general.architecture", "general.file_type") or field.name.startswith("GGUF."):
            continue
        kind = field.types[0]
        writer.add_key_value(field.name, field.contents(), kind, field.types[-1] if len(field.types) > 1 else None)
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{precision.upper()}"])
    for tensor in reader.tensors:
        if tensor.tensor_type in (gguf.GGMLQuantizationType.F32, wanted):
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        else:
            values = gguf.dequantize(tensor.data, tensor.tensor_type)
            writer.add_tensor(tensor.name, gguf.quantize(values, wanted), raw_dtype=wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def convert_openvino(environment: Environment, source: Path, target: Path, precision: str) -> None:
    """optimum-intel's export; int4 takes groups of 64, the largest that divide every row of the model."""
    command = [str(environment.folder / "bin" / "optimum-cli"), "export", "openvino", "--model", str(source)]
    command += ["--task", "text-generation-with-past", "--weight-format", precision]
    if precision == "int4":
        command += ["--group-size", "64"]
    environment.run([*command, str(target)])


def convert_onnx(environment: Environment, source: Path, target: Path, precision: str) -> None:
    command = [str(environment.python), "-m", "onnxruntime_genai.models.builder", "-i", str(source)]
    cache = environment.folder / "builder_cache"
    environment.run([*command, "-o", str(target), "-p", precision, "-e", "cpu", "-c", str(cache)])
