"""The header of a safetensors file: what its tensors are and where they lie.

A file is eight bytes with the header's length, the header (JSON: per tensor its dtype, shape and place in the data),
then the data. The header is read here and not by the safetensors library because the library's numpy interface has no
bfloat16, reads whole tensors, and its errors name neither file nor tensor; its torch interface would bring torch into
this layer. What the library checks is checked here too. Specification: the README of the safetensors repository.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from quire.checkpoint.mapped_file import MappedFile
from quire.errors import CheckpointError

_MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""
_MAX_MARKS = 2**20
"""Of , : [ and { in a header: 65,536 tensors with 16 each. Every value of JSON follows one, so they bound what parsing makes."""
_LENGTH_BYTES = 8
_METADATA = "__metadata__"
"""The one key that names no tensor; its texts are of no use here."""

_BITS_PER_ELEMENT = {
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "U16": 16,
    "I16": 16,
    "F16": 16,
    "BF16": 16,
    "U32": 32,
    "I32": 32,
    "F32": 32,
    "U64": 64,
    "I64": 64,
    "F64": 64,
    "C64": 64,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E8M0": 8,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "F4": 4,
}
"""Every dtype of the format: checkpoints carry buffers (masks, position ids) that nobody reads."""


@dataclass(frozen=True, slots=True)
class SafetensorsTensor:
    """`dtype` is the file's own name for it. `shape` is outermost dimension first. `offset` is from the file's start."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int


_Size = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    dtype: str
    shape: Annotated[tuple[_Size, ...], msgspec.Meta(max_length=64)]
    data_offsets: tuple[_Size, _Size]
    """Where the tensor starts and ends, in bytes of the data."""


def read_safetensors_header(file: MappedFile) -> list[SafetensorsTensor]:
    """The tensors in the order of their data, which they must fill without gap or overlap.

    Raises CheckpointError naming the file and, where there is one, the tensor.
    """
    if file.num_bytes < _LENGTH_BYTES:
        raise _damaged(file, f"has {file.num_bytes} bytes, too few for a header")
    length = int.from_bytes(file.data[:_LENGTH_BYTES], "little")
    data_start = _LENGTH_BYTES + length
    if length > _MAX_HEADER_BYTES or data_start > file.num_bytes:
        raise _damaged(file, f"announces a header of {length:,} bytes in a file of {file.num_bytes:,}")
    entries = _parse_header(file, file.data[_LENGTH_BYTES:data_start])
    tensors: list[SafetensorsTensor] = []
    end = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        start, stop = entry.data_offsets
        if start != end:
            raise _damaged(file, f"has tensor {name!r} at byte {start:,} of its data, where {end:,} is next")
        if stop - start != _num_bytes(file, name, entry):
            shape = list(entry.shape)
            raise _damaged(file, f"gives tensor {name!r} {stop - start:,} bytes, not those of {entry.dtype} {shape}")
        tensors.append(SafetensorsTensor(name, entry.dtype, entry.shape, data_start + start))
        end = stop
    if data_start + end != file.num_bytes:
        raise _damaged(file, f"has {file.num_bytes:,} bytes, but its tensors end at byte {data_start + end:,}")
    return tensors


def _parse_header(file: MappedFile, header: bytes) -> dict[str, _Entry]:
    num_marks = sum(header.count(mark) for mark in (b",", b":", b"[", b"{"))
    if num_marks > _MAX_MARKS:
        raise _damaged(
            file, f"has a header with {num_marks:,} of the marks , : [ and {{, where {_MAX_MARKS:,} are allowed"
        )
    try:
        # Decoded here: given bytes, json would guess at other encodings. A header must start with its object.
        content = json.loads(header.decode(), object_pairs_hook=_refuse_duplicates) if header[:1] == b"{" else None
    except _DuplicateKeyError as error:
        raise _damaged(file, f"names {error.args[0]!r} twice in its header") from error
    except (ValueError, RecursionError) as error:
        raise _damaged(file, "has a header that is not JSON in UTF-8") from error
    if content is None:
        raise _damaged(file, "has a header that is not a JSON object")
    _check_metadata(file, content.pop(_METADATA, {}))
    return {name: _read_entry(file, name, fields) for name, fields in content.items()}


class _DuplicateKeyError(Exception):
    pass


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Where JSON's usual reading would keep the last of two equal keys."""
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise _DuplicateKeyError(Counter(key for key, _ in pairs).most_common(1)[0][0])
    return fields


def _check_metadata(file: MappedFile, metadata: Any) -> None:
    try:
        msgspec.convert(metadata, dict[str, str])
    except msgspec.ValidationError as error:
        raise _damaged(file, f"has a {_METADATA} in its header that is not texts by name") from error


def _read_entry(file: MappedFile, name: str, fields: Any) -> _Entry:
    try:
        name.encode()
        entry = msgspec.convert(fields, _Entry)
    except UnicodeEncodeError as error:
        raise _damaged(file, f"has a tensor whose name {name!r} is not Unicode text") from error
    except msgspec.ValidationError as error:
        raise _damaged(file, f"describes tensor {name!r} wrongly: {error}") from error
    if entry.dtype not in _BITS_PER_ELEMENT:
        raise _damaged(file, f"gives tensor {name!r} the dtype {entry.dtype!r}, which the format does not have")
    return entry


def _num_bytes(file: MappedFile, name: str, entry: _Entry) -> int:
    num_bytes, rest = divmod(math.prod(entry.shape) * _BITS_PER_ELEMENT[entry.dtype], 8)
    if rest:
        raise _damaged(file, f"has tensor {name!r} of {entry.dtype} {list(entry.shape)}, which ends within a byte")
    return num_bytes


def _damaged(file: MappedFile, problem: str) -> CheckpointError:
    return CheckpointError(f"{file.path} {problem}; the file is damaged or cut short, fetch it again.")
