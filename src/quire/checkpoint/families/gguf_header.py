"""What a GGUF file says of its model before any tensor is read: metadata, and the tensors' names, shapes and sizes."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from quire.checkpoint.families.fields import ConfigFields
from quire.checkpoint.gguf import GGUFTensor
from quire.checkpoint.model_config import CodelessTensors
from quire.errors import CheckpointError

DTYPES = {"F16": "float16", "BF16": "bfloat16"}
"""By the type of a tensor; all others are taken for float32."""
ROPE_DIVISORS = "rope_freqs.weight"


class GGUFHeader:
    """`fields` are the metadata of the file's own architecture, such as llama.block_count; `tokenizer` are tokenizer.ggml.*."""

    def __init__(
        self, metadata: Mapping[str, Any], tensors: Mapping[str, GGUFTensor], source: str, architecture: str
    ) -> None:
        self.source = source
        self.fields = ConfigFields(metadata, source, f"{architecture}.")
        self.tokenizer = ConfigFields(metadata, source, "tokenizer.ggml.")
        self._tensors = tensors

    def has(self, tensor: str) -> bool:
        return tensor in self._tensors

    def vocab_size(self) -> int:
        """Rows of the token embedding, which may be more than the tokenizer has tokens."""
        embedding = self._tensors.get("token_embd.weight")
        if embedding is None or len(embedding.shape) != 2:
            raise CheckpointError(f"{self.source} lacks the tensor token_embd.weight; fetch the file again.")
        return embedding.shape[0]

    def dtype(self) -> str:
        """That of most values: general.file_type says it too, but not in all files."""
        num_values: Counter[str] = Counter()
        for tensor in self._tensors.values():
            num_values[tensor.type.name] += math.prod(tensor.shape)
        ((most, _),) = num_values.most_common(1)
        return DTYPES.get(most, "float32")

    def quantized_bytes(self) -> int | None:
        """Bytes of the tensors whose codes are kept; None where there is none."""
        kept = [
            round(math.prod(tensor.shape) * tensor.codes.bytes_per_value)
            for tensor in self._tensors.values()
            if tensor.codes is not None
        ]
        return sum(kept) if kept else None

    def num_float_values(self) -> int:
        """Values of all other tensors."""
        return sum(math.prod(tensor.shape) for tensor in self._tensors.values() if tensor.codes is None)

    def codeless(self) -> tuple[CodelessTensors, ...]:
        """What `num_float_values` counts though it is stored in few bits."""
        by_type: defaultdict[str, list[GGUFTensor]] = defaultdict(list)
        for tensor in self._tensors.values():
            if tensor.type.num_values > 1 and tensor.codes is None:
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
