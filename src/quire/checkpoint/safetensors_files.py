"""The weights of a safetensors checkpoint, in one file or several shards, memory-mapped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from quire.checkpoint.gguf.block_codes import BlockRows
from quire.checkpoint.mapped_file import MappedFile
from quire.checkpoint.safetensors_header import SafetensorsTensor, read_safetensors_header
from quire.checkpoint.weights import TensorInfo
from quire.errors import CheckpointError, UnsupportedModelError

_DTYPES: dict[str, tuple[str, np.dtype[Any]]] = {
    "F32": ("float32", np.dtype("<f4")),
    "F16": ("float16", np.dtype("<f2")),
    "BF16": ("bfloat16", np.dtype("<u2")),
}
"""The dtypes weights may have: WeightSource's name for each, and its elements as they are handed out."""


class SafetensorsFiles:
    """A WeightSource over the files of one checkpoint. Headers are read on opening, tensors when asked for."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """Raises CheckpointError naming the file and, where there is one, the tensor."""
        self._files: list[MappedFile] = []
        self._tensors: dict[str, tuple[MappedFile, SafetensorsTensor]] = {}
        try:
            for path in paths:
                self._open(path)
        except BaseException:
            self.close()
            raise

    def names(self) -> list[str]:
        return list(self._tensors)

    def info(self, name: str) -> TensorInfo:
        """Raises CheckpointError if there is no such tensor, UnsupportedModelError if its dtype is no weights' dtype."""
        file, tensor = self._find(name)
        return TensorInfo(tensor.shape, _dtype(file, tensor)[0])

    def read(self, name: str, start: int, stop: int) -> npt.NDArray[Any]:
        """Rows [start, stop) as a read-only view of the file. A 0-d tensor is read as one row. Raises as `info`."""
        file, tensor = self._find(name)
        dtype = _dtype(file, tensor)[1]
        num_rows, *row_shape = tensor.shape or (1,)
        if not 0 <= start <= stop <= num_rows:
            raise IndexError(f"{file.path}: tensor {name!r} has {num_rows} rows, not rows {start} to {stop}.")
        row_size = math.prod(row_shape)
        offset = tensor.offset + start * row_size * dtype.itemsize
        return file.array(dtype, offset, (stop - start) * row_size).reshape(stop - start, *row_shape)

    def read_blocks(self, name: str, *, transposed: bool) -> BlockRows | None:
        return None

    def close(self) -> None:
        for file in self._files:
            file.close()

    def _open(self, path: Path) -> None:
        file = MappedFile(path)
        self._files.append(file)
        for tensor in read_safetensors_header(file):
            if tensor.name in self._tensors:
                other = self._tensors[tensor.name][0].path
                raise CheckpointError(
                    f"{path}: tensor {tensor.name!r} is in {other} too; remove the file that is not part of the model."
                )
            self._tensors[tensor.name] = (file, tensor)
        file.forget()

    def _find(self, name: str) -> tuple[MappedFile, SafetensorsTensor]:
        if name not in self._tensors:
            files = ", ".join(str(file.path) for file in self._files)
            raise CheckpointError(f"There is no tensor {name!r} among the {len(self._tensors)} of {files}.")
        return self._tensors[name]


def _dtype(file: MappedFile, tensor: SafetensorsTensor) -> tuple[str, np.dtype[Any]]:
    if tensor.dtype not in _DTYPES:
        raise UnsupportedModelError(
            f"{file.path}: tensor {tensor.name!r} has dtype {tensor.dtype}, which is not supported for weights;"
            f" supported are {', '.join(_DTYPES)}."
        )
    return _DTYPES[tensor.dtype]
