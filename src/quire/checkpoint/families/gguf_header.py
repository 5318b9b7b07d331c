"""What a GGUF file says of its model before any tensor is read: metadata, and the tensors' names, shapes and sizes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from quire.checkpoint.families.fields import ConfigFields
from quire.checkpoint.gguf import GGUFTensor
from quire.checkpoint.gguf.block_codes import CODE_TYPES, CodeType
from quire.checkpoint.model_config import CodelessTensors
from quire.errors import CheckpointError

FILE_TYPE_DTYPES = {0: "float32", 1: "float16", 32: "bfloat16"}
"""general.file_type of the files that are not quantized."""
ROPE_DIVISORS = "rope_freqs.weight"


class GGUFHeader:
    """`fields` are the metadata of the file's own architecture, such as llama.block_count."""

    def __init__(
        self, metadata: Mapping[str, Any], tensors: Mapping[str, GGUFTensor], source: str, architecture: str
    ) -> None:
        self.source = source
        self.architecture = architecture
        self.fields = ConfigFields(metadata, source, f"{architecture}.")
        self._general = ConfigFields(metadata, source)
        self._tensors = tensors

    def has(self, tensor: str) -> bool:
        return tensor in self._tensors

    def vocab_size(self) -> int:
        """Rows of the token embedding, which may be more than the tokenizer has tokens."""
        embedding = self._tensors.get("token_embd.weight")
        if embedding is None or len(embedding.shape) != 2:
            raise CheckpointError(f"{self.source} lacks the tensor token_embd.weight; fetch the file again.")
        return embedding.shape[0]

    def tied(self) -> bool:
        """Whether the token embedding is the output projection too."""
        return not self.has("output.weight")

    def dtype(self) -> str:
        return FILE_TYPE_DTYPES.get(self._file_type(), "float32")

    def quantized_bytes(self) -> int | None:
        """Bytes of all tensors kept in few bits; None where the file is not quantized."""
        if self._file_type() in FILE_TYPE_DTYPES:
            return None
        return sum(_bytes_kept(tensor) for tensor in self._tensors.values())

    def codeless(self) -> tuple[CodelessTensors, ...]:
        """What `quantized_bytes` counts as floats though it is stored in few bits."""
        by_type: defaultdict[str, list[GGUFTensor]] = defaultdict(list)
        for tensor in self._tensors.values():
            if tensor.type.num_values > 1 and _codes(tensor) is None:
                by_type[tensor.type.name].append(tensor)
        return tuple(
            CodelessTensors(
                type_name=name,
                num_tensors=len(tensors),
                num_values=sum(math.prod(tensor.shape) for tensor in tensors),
                num_bytes=sum(tensor.num_bytes for tensor in tensors),
            )
            for name, tensors in sorted(by_type.items())
        )

    def bos_token_id(self) -> int | None:
        return self._general.optional_integer("tokenizer.ggml.bos_token_id", minimum=0)

    def eos_token_ids(self) -> tuple[int, ...]:
        """The end of a text and, where it is another token, the end of a turn."""
        ids = (self._general.optional_integer(f"tokenizer.ggml.{kind}_token_id", minimum=0) for kind in ("eos", "eot"))
        return tuple(dict.fromkeys(token_id for token_id in ids if token_id is not None))

    def _file_type(self) -> int:
        """Files without the key are taken for quantized: most are."""
        return self._general.integer("general.file_type", 2, minimum=0)


def _bytes_kept(tensor: GGUFTensor) -> int:
    """What is not stored in codes becomes floats, of four bytes at most."""
    codes = _codes(tensor)
    return round(math.prod(tensor.shape) * (4 if codes is None else codes.bytes_per_value))


def _codes(tensor: GGUFTensor) -> CodeType | None:
    return CODE_TYPES.get(tensor.type.name) if len(tensor.shape) == 2 else None
