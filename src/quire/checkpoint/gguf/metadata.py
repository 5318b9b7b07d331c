"""GGUF metadata: typed key-value pairs before the tensors."""

from __future__ import annotations

import enum
from typing import Any

import numpy as np

from quire.checkpoint.gguf.cursor import Cursor

MetadataValue = bool | int | float | str | list[Any]
"""Arrays come as lists, nested ones as lists of lists."""


class ValueType(enum.IntEnum):
    """The format's numbers for what a value is."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


class TokenType(enum.IntEnum):
    """What a token is: tokenizer.ggml.token_type, which is SentencePiece's."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


_NUMBERS: dict[ValueType, np.dtype[Any]] = {
    ValueType.UINT8: np.dtype("<u1"),
    ValueType.INT8: np.dtype("<i1"),
    ValueType.UINT16: np.dtype("<u2"),
    ValueType.INT16: np.dtype("<i2"),
    ValueType.UINT32: np.dtype("<u4"),
    ValueType.INT32: np.dtype("<i4"),
    ValueType.FLOAT32: np.dtype("<f4"),
    ValueType.BOOL: np.dtype("<u1"),
    ValueType.UINT64: np.dtype("<u8"),
    ValueType.INT64: np.dtype("<i8"),
    ValueType.FLOAT64: np.dtype("<f8"),
}

MIN_PAIR_BYTES = 8 + 4 + 1
"""An empty key, a type, a one-byte value."""
_MIN_ARRAY_BYTES = 4 + 8
_MAX_DEPTH = 8
"""Arrays within arrays; no writer goes beyond two."""
MAX_ARRAY_ENTRIES = 2**24
"""Of all arrays of a file together; real files have a tenth. Each becomes a Python object, whatever it takes on disk."""
ENTRIES_OF_AN_ARRAY = 64
"""What an array within an array counts for, by the time and memory that an empty one takes."""


def read_metadata(cursor: Cursor, num_pairs: int) -> dict[str, MetadataValue]:
    """Raises CheckpointError naming the key."""
    metadata: dict[str, MetadataValue] = {}
    for index in range(num_pairs):
        cursor.subject = f"metadata entry {index:,}"
        key = cursor.name("a key")
        cursor.subject = f"metadata key {key!r}"
        if key in metadata:
            raise cursor.damaged("comes twice")
        metadata[key] = _read_value(cursor, _read_type(cursor))
    return metadata


def _read_type(cursor: Cursor) -> ValueType:
    number = cursor.u32("a value type")
    try:
        return ValueType(number)
    except ValueError as error:
        raise cursor.damaged(f"has value type {number}, where types go from 0 to {max(ValueType)}") from error


def _read_value(cursor: Cursor, value_type: ValueType) -> MetadataValue:
    if value_type is ValueType.STRING:
        return cursor.string()
    if value_type is ValueType.ARRAY:
        return _read_array(cursor, depth=0)
    value: MetadataValue = _read_numbers(cursor, value_type, 1)[0]
    return value


def _read_array(cursor: Cursor, depth: int) -> list[Any]:
    if depth == _MAX_DEPTH:
        raise cursor.damaged(f"nests arrays more than {_MAX_DEPTH} deep")
    value_type = _read_type(cursor)
    if value_type is ValueType.ARRAY:
        count = _count(cursor, "arrays", _MIN_ARRAY_BYTES, cost=ENTRIES_OF_AN_ARRAY)
        return [_read_array(cursor, depth + 1) for _ in range(count)]
    if value_type is ValueType.STRING:
        return cursor.strings(_count(cursor, "strings", 8))
    return _read_numbers(cursor, value_type, _count(cursor, "numbers", _NUMBERS[value_type].itemsize))


def _count(cursor: Cursor, what: str, min_bytes: int, *, cost: int = 1) -> int:
    """How many entries an array has, nothing being made for them yet."""
    count = cursor.count(what, min_bytes=min_bytes)
    cursor.num_array_entries += count * cost
    if cursor.num_array_entries > MAX_ARRAY_ENTRIES:
        raise cursor.damaged(
            f"announces {count:,} {what}, where the arrays of a file may have {MAX_ARRAY_ENTRIES:,} entries in all,"
            f" an array within an array counting for {ENTRIES_OF_AN_ARRAY}"
        )
    return count


def _read_numbers(cursor: Cursor, value_type: ValueType, count: int) -> list[Any]:
    numbers = cursor.numbers(_NUMBERS[value_type], count)
    if value_type is ValueType.BOOL:
        if count and numbers.max() > 1:
            raise cursor.damaged(f"has a truth value of {numbers.max()}, where 0 and 1 are allowed")
        numbers = numbers.astype(bool)
    values: list[Any] = numbers.tolist()
    return values
