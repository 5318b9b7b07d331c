"""GGUF files made byte by byte, so that a test can make any part of one wrong."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

U8, U32, F32, BOOL, STRING, ARRAY = 0, 4, 6, 7, 8, 9
"""Metadata value types."""
TENSOR_F32, TENSOR_Q8_0 = 0, 8


def string(text: str | bytes) -> bytes:
    encoded = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(encoded)) + encoded


def pair(key: str | bytes, value_type: int, value: bytes) -> bytes:
    return string(key) + struct.pack("<I", value_type) + value


def array(value_type: int, count: int, items: bytes) -> bytes:
    return struct.pack("<IQ", value_type, count) + items


@dataclass
class Entry:
    """A line of the tensor table. `dims` is innermost first, as the file has it."""

    name: str | bytes
    dims: Sequence[int]
    type: int = TENSOR_F32
    offset: int = 0

    def encode(self) -> bytes:
        dims = struct.pack(f"<I{len(self.dims)}Q", len(self.dims), *self.dims)
        return string(self.name) + dims + struct.pack("<IQ", self.type, self.offset)


def gguf_bytes(
    pairs: Sequence[bytes] = (),
    entries: Sequence[Entry] = (),
    data: bytes = b"",
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    num_tensors: int | None = None,
    num_pairs: int | None = None,
    alignment: int = 32,
) -> bytes:
    """A file with these parts, the counts being right unless given."""
    header = magic + struct.pack(
        "<IQQ",
        version,
        len(entries) if num_tensors is None else num_tensors,
        len(pairs) if num_pairs is None else num_pairs,
    )
    tables = header + b"".join(pairs) + b"".join(entry.encode() for entry in entries)
    return tables + bytes(-len(tables) % alignment) + data
