"""How weights are read, whatever file they lie in: by Hugging Face name, a few rows at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy.typing as npt

from quire.checkpoint.gguf.block_codes import BlockRows


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """`shape` is outermost dimension first. `dtype` is what `read` returns: float32, float16 or bfloat16."""

    shape: tuple[int, ...]
    dtype: str


class WeightSource(Protocol):
    """A memory-mapped checkpoint. Names are Hugging Face's (model.layers.0.self_attn.q_proj.weight)."""

    def names(self) -> list[str]: ...

    def info(self, name: str) -> TensorInfo:
        """Raises CheckpointError naming file and tensor if there is no such tensor."""

    def read(self, name: str, start: int, stop: int) -> npt.NDArray[Any]:
        """Rows [start, stop) of the outermost dimension (of a 1-d tensor: elements).

        float32 and float16 come as such, bfloat16 as uint16 holding its bits. Quantized types are dequantized to
        float32. May be a view of the file: the caller copies and never writes.
        """

    def read_blocks(self, name: str, *, transposed: bool) -> BlockRows | None:
        """A tensor in the file's own blocks of few bits, valid until the next one is read; None where it has none.

        Its rows, or, `transposed`, its columns are rows of the file.
        """

    def close(self) -> None: ...
