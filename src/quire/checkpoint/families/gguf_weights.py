"""The tensors of a GGUF file under Hugging Face's names and with Hugging Face's numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from quire.checkpoint.families.gguf_names import TensorOrigin, match_names
from quire.checkpoint.families.registry import FAMILIES
from quire.checkpoint.gguf import GGUFFile
from quire.checkpoint.gguf.block_codes import BlockRows
from quire.checkpoint.model_config import ModelConfig
from quire.checkpoint.weights import TensorInfo
from quire.core.arrays import Float32Array
from quire.errors import CheckpointError


class GGUFWeights:
    """A WeightSource, which closes its file. Everything comes as float32; what the conversion to GGUF changed is undone row by row."""

    def __init__(self, config: ModelConfig, file: GGUFFile) -> None:
        rules = FAMILIES[config.family].gguf_names
        assert rules is not None, f"{config.family} was not read from a GGUF file"
        self._file = file
        self._origins = match_names(file.tensors, rules(config))
        self._transposed: tuple[str, Float32Array] | None = None
        """The tensor that is being read column by column, whole."""

    def names(self) -> list[str]:
        return list(self._origins)

    def info(self, name: str) -> TensorInfo:
        origin = self._origin(name)
        shape = self._file.tensors[origin.gguf].shape
        return TensorInfo(shape[::-1] if origin.rule.transposed else shape, "float32")

    def read(self, name: str, start: int, stop: int) -> npt.NDArray[Any]:
        origin = self._origin(name)
        if origin.rule.transposed and len(self._file.tensors[origin.gguf].shape) == 2:
            return self._transpose(origin.gguf)[start:stop]
        if origin.rule.rotary_heads is not None:
            return self._read_rotary_rows(origin, origin.rule.rotary_heads, start, stop)
        rows = self._file.read_rows(origin.gguf, start, stop)
        return rows + np.float32(origin.rule.offset) if origin.rule.offset else rows

    def read_blocks(self, name: str, *, transposed: bool) -> BlockRows | None:
        origin = self._origin(name)
        tensor = self._file.tensors[origin.gguf]
        if origin.rule.transposed != transposed or origin.rule.offset or tensor.codes is None:
            return None
        return self._file.read_blocks(origin.gguf, self._rows_in_file(origin, np.arange(tensor.shape[0])))

    def _rows_in_file(self, origin: TensorOrigin, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        if origin.rule.rotary_heads is not None:
            # Row j of a head's first half is row 2 j of the file, of its second row 2 j + 1.
            head_dim = self._file.tensors[origin.gguf].shape[0] // origin.rule.rotary_heads
            head, row = np.divmod(rows, head_dim)
            rows = head * head_dim + row % (head_dim // 2) * 2 + row // (head_dim // 2)
        return rows

    def close(self) -> None:
        self._transposed = None
        self._file.close()

    def _origin(self, name: str) -> TensorOrigin:
        if name not in self._origins:
            raise CheckpointError(f"{self._file.path} lacks the tensor that {name} is read from; fetch the file again.")
        return self._origins[name]

    def _read_rotary_rows(self, origin: TensorOrigin, num_heads: int, start: int, stop: int) -> Float32Array:
        """Rows [start, stop) in Hugging Face's order: each head's even rows of the file, then its odd ones."""
        num_rows = self._file.tensors[origin.gguf].shape[0]
        head_dim = num_rows // num_heads
        first = start // head_dim * head_dim
        last = -(-stop // head_dim) * head_dim
        rows = self._file.read_rows(origin.gguf, first, last)
        return rows[self._rows_in_file(origin, np.arange(start, stop)) - first]

    def _transpose(self, gguf: str) -> Float32Array:
        """A few columns of a row-wise quantized tensor cost as much as all, so the tensor is kept until the next one."""
        if self._transposed is None or self._transposed[0] != gguf:
            whole = self._file.read_rows(gguf, 0, self._file.tensors[gguf].shape[0])
            self._transposed = (gguf, whole.T)
        return self._transposed[1]
