"""The table of a GGUF file's tensors: where each lies, checked against the others and against the file's size."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass

from quire.checkpoint.gguf.block_codes import CODE_TYPES, CodeType
from quire.checkpoint.gguf.block_types import BLOCK_TYPES, UNREAD_TYPES, BlockType
from quire.checkpoint.gguf.cursor import Cursor
from quire.checkpoint.gguf.metadata import MetadataValue
from quire.errors import UnsupportedModelError

MIN_ENTRY_BYTES = 8 + 4 + 8 + 4 + 8
"""An empty name, one dimension, a type and an offset."""
_MAX_DIMENSIONS = 4
_DEFAULT_ALIGNMENT = 32


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """`shape` is outermost dimension first (the file has it innermost first). `offset` is from the file's start."""

    shape: tuple[int, ...]
    type: BlockType
    offset: int
    num_bytes: int

    @property
    def codes(self) -> CodeType | None:
        """What its blocks are to the kernels that multiply few bits; None where they have none for it."""
        return CODE_TYPES.get(self.type.name) if len(self.shape) == 2 else None


def read_tensor_table(cursor: Cursor, num_tensors: int, metadata: Mapping[str, MetadataValue]) -> dict[str, GGUFTensor]:
    """Raises CheckpointError or UnsupportedModelError naming the tensor.

    Tensors must follow each other in the table's order, each at the next aligned byte, to the end of the file: every
    writer does so, and a flipped bit in a dimension, an offset or a count then shows.
    """
    cursor.subject = "metadata key 'general.alignment'"
    alignment = _alignment(cursor, metadata)
    entries: dict[str, tuple[tuple[int, ...], BlockType, int]] = {}
    for index in range(num_tensors):
        cursor.subject = f"tensor {index:,}"
        name = cursor.name("a name")
        cursor.subject = f"tensor {name!r}"
        if name in entries:
            raise cursor.damaged("comes twice")
        entries[name] = (_read_shape(cursor), _read_type(cursor, name), cursor.u64("an offset"))
    return _place(cursor, entries, alignment)


def _place(
    cursor: Cursor, entries: Mapping[str, tuple[tuple[int, ...], BlockType, int]], alignment: int
) -> dict[str, GGUFTensor]:
    """Turn offsets within the data, which starts at the first aligned byte after the table, into places in the file."""
    tensors: dict[str, GGUFTensor] = {}
    file_bytes = len(cursor.data)
    data_start = end = -(-cursor.position // alignment) * alignment
    for name, (shape, block_type, offset) in entries.items():
        cursor.subject = f"tensor {name!r}"
        num_bytes = _num_bytes(cursor, shape, block_type)
        start = -(-end // alignment) * alignment
        if data_start + offset != start:
            raise cursor.damaged(f"starts at byte {data_start + offset:,}, where {start:,} is next")
        end = start + num_bytes
        if end > file_bytes:
            raise cursor.damaged(f"ends at byte {end:,}, but the file has {file_bytes:,} bytes")
        tensors[name] = GGUFTensor(shape, block_type, start, num_bytes)
    if tensors and file_bytes - end >= alignment:
        raise cursor.damaged(f"is the last and ends at byte {end:,}, but the file has {file_bytes:,} bytes")
    return tensors


def _alignment(cursor: Cursor, metadata: Mapping[str, MetadataValue]) -> int:
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment < 1 or alignment.bit_count() != 1:
        raise cursor.damaged(f"is {reprlib.repr(alignment)}, where a power of two is needed")
    return alignment


def _read_shape(cursor: Cursor) -> tuple[int, ...]:
    num_dimensions = cursor.u32("a number of dimensions")
    if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
        raise cursor.damaged(f"has {num_dimensions:,} dimensions, where 1 to {_MAX_DIMENSIONS} are allowed")
    shape = tuple(cursor.u64("a dimension") for _ in range(num_dimensions))
    if 0 in shape:
        raise cursor.damaged(f"has a dimension of 0 in its shape {list(reversed(shape))}")
    return shape[::-1]


def _read_type(cursor: Cursor, name: str) -> BlockType:
    number = cursor.u32("a type")
    if number not in BLOCK_TYPES:
        known_as = f" ({UNREAD_TYPES[number]})" if number in UNREAD_TYPES else ""
        supported = ", ".join(block_type.name for block_type in BLOCK_TYPES.values())
        raise UnsupportedModelError(
            f"{cursor.source}: tensor {name!r} has type {number}{known_as}, which is not supported; supported are"
            f" {supported}."
        )
    return BLOCK_TYPES[number]


def _num_bytes(cursor: Cursor, shape: tuple[int, ...], block_type: BlockType) -> int:
    if shape[-1] % block_type.num_values:
        raise cursor.damaged(
            f"has rows of {shape[-1]:,} values, which blocks of {block_type.num_values} ({block_type.name}) do not fill"
        )
    return math.prod(shape) // block_type.num_values * block_type.num_bytes
