"""A GGUF file opened for reading.

The format: a header (magic, version, counts), key-value metadata, a table of tensors, then the tensors' bytes. All
numbers are little-endian. Specification: docs/gguf.md of the ggml repository. Versions 2 and 3 differ only in that 3
also allows big-endian files, which quire refuses.
"""

from __future__ import annotations

import math
import reprlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from quire.checkpoint.gguf.block_codes import BlockRows
from quire.checkpoint.gguf.cursor import Cursor
from quire.checkpoint.gguf.metadata import MIN_PAIR_BYTES, MetadataValue, read_metadata
from quire.checkpoint.gguf.tensor_table import MIN_ENTRY_BYTES, GGUFTensor, read_tensor_table
from quire.checkpoint.mapped_file import MappedFile
from quire.errors import CheckpointError, UnsupportedModelError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
MAX_TABLE_ENTRIES = 65_536
"""Of the tensors, and of the metadata entries, of a file; real ones have a twentieth."""
_VALUES_AT_A_TIME = 1 << 16
"""Dequantization works on pieces whose intermediate arrays stay in the processor's cache."""


class GGUFFile:
    """Metadata and tensor table are read on opening, tensors when asked for.

    `metadata`: value by key; `tensors`: by name, in the file's order. Use as a context manager, or `close` it.
    """

    def __init__(self, path: Path | str) -> None:
        """Raises CheckpointError where the file is damaged, UnsupportedModelError where quire cannot read its kind."""
        self.path = Path(path)
        self._file = MappedFile(self.path)
        try:
            self.metadata, self.tensors = self._read_tables()
        except BaseException:
            self._file.close()
            raise
        self._file.forget()

    def read_rows(self, name: str, start: int, stop: int) -> npt.NDArray[np.float32]:
        """Rows [start, stop) of the outermost dimension (of a 1-d tensor: elements), dequantized.

        Raises CheckpointError if there is no such tensor.
        """
        tensor = self._tensor(name)
        if not 0 <= start <= stop <= tensor.shape[0]:
            raise IndexError(f"{self.path}: tensor {name!r} has {tensor.shape[0]} rows, not rows {start} to {stop}.")
        row_values = math.prod(tensor.shape[1:])
        values = self._read_values(tensor, start * row_values, stop * row_values)
        return values.reshape(stop - start, *tensor.shape[1:])

    def read_blocks(self, name: str, rows: npt.NDArray[np.int64]) -> BlockRows:
        """Rows of a tensor that has codes, nothing read yet: a view of the file, until the next tensor is read.

        Raises CheckpointError if there is no such tensor.
        """
        tensor = self._tensor(name)
        row_bytes = tensor.shape[1] // tensor.type.num_values * tensor.type.num_bytes
        blocks = self._file.array(np.uint8, tensor.offset, tensor.shape[0] * row_bytes)
        return BlockRows(tensor.type.name, tensor.shape[1], blocks.reshape(tensor.shape[0], row_bytes), rows)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _read_values(self, tensor: GGUFTensor, start: int, stop: int) -> npt.NDArray[np.float32]:
        """Elements [start, stop) of the flattened tensor. Elements of a 1-d tensor may start within a block."""
        block_type = tensor.type
        first, last = start // block_type.num_values, -(-stop // block_type.num_values)
        offset = tensor.offset + first * block_type.num_bytes
        blocks = self._file.array(block_type.layout, offset, last - first)
        skipped = first * block_type.num_values
        values = np.empty((len(blocks), block_type.num_values), np.float32)
        step = _VALUES_AT_A_TIME // block_type.num_values
        # A scale that is infinite or not a number gives values that are not: the model's checks find those.
        with np.errstate(invalid="ignore"):
            for at in range(0, len(blocks), step):
                values[at : at + step] = block_type.dequantize(blocks[at : at + step])
        return values.reshape(-1)[start - skipped : stop - skipped]

    def _tensor(self, name: str) -> GGUFTensor:
        if name not in self.tensors:
            raise CheckpointError(f"{self.path} has no tensor {name!r} among its {len(self.tensors)}.")
        return self.tensors[name]

    def _read_tables(self) -> tuple[dict[str, MetadataValue], dict[str, GGUFTensor]]:
        cursor = Cursor(self._file.data, str(self.path))
        _check_kind(cursor)
        num_tensors = _table_size(cursor, "tensors", MIN_ENTRY_BYTES)
        num_pairs = _table_size(cursor, "metadata entries", MIN_PAIR_BYTES)
        metadata = read_metadata(cursor, num_pairs)
        num_parts = metadata.get("split.count", 1)
        if num_parts not in (0, 1):
            raise UnsupportedModelError(
                f"{self.path} is one of {reprlib.repr(num_parts)} parts (split.count); join them with"
                " llama-gguf-split --merge."
            )
        return metadata, read_tensor_table(cursor, num_tensors, metadata)


def _table_size(cursor: Cursor, what: str, min_bytes: int) -> int:
    """How many tensors or metadata entries there are, nothing being made for them yet."""
    count = cursor.count(what, min_bytes=min_bytes)
    if count > MAX_TABLE_ENTRIES:
        raise cursor.damaged(f"announces {count:,} {what}, where a file may have {MAX_TABLE_ENTRIES:,}")
    return count


def _check_kind(cursor: Cursor) -> None:
    """The magic and the version."""
    start = cursor.take(len(_MAGIC), "the magic")
    magic = cursor.data[start : cursor.position]
    if magic != _MAGIC:
        raise CheckpointError(f"{cursor.source} starts with {magic!r}, not {_MAGIC!r}; it is no GGUF file.")
    version = cursor.u32("the version")
    if version in _VERSIONS:
        return
    swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
    if swapped in _VERSIONS:
        raise UnsupportedModelError(f"{cursor.source} is a big-endian GGUF file; use the little-endian one.")
    raise UnsupportedModelError(f"{cursor.source} is a GGUF file of version {version:,}; supported are 2 and 3.")
