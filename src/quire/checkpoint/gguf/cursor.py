"""Reading little-endian fields one after the other, never past the end of the file."""

from __future__ import annotations

import mmap
import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from quire.errors import CheckpointError

MAX_NAME_BYTES = 65_535
"""The format's own limit on keys; tensor names are far shorter."""
MAX_TABLE_BYTES = 2**27
"""Where metadata and tensor table end at the latest; real ones take a tenth. A sparse file holds any length for nothing."""

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class Cursor:
    """A position in a GGUF file.

    Every count and length is compared with the bytes left before anything of that size is read or made, so a
    damaged length costs an error and no memory. Bytes beyond MAX_TABLE_BYTES count as not there.
    """

    def __init__(self, data: mmap.mmap, source: str) -> None:
        self.data = data
        self.source = source
        self.position = 0
        self.end = min(len(data), MAX_TABLE_BYTES)
        self.num_array_entries = 0
        """Read so far, in all metadata."""
        self.subject = "the header"
        """What is being read, for messages: the header, a metadata key or a tensor."""

    def damaged(self, problem: str) -> CheckpointError:
        return CheckpointError(f"{self.source}: {self.subject} {problem}; the file is damaged, fetch it again.")

    def take(self, num_bytes: int, what: str) -> int:
        """Step over `num_bytes` and return where they start."""
        start = self.position
        left = self.end - start
        if num_bytes > left:
            raise self.damaged(f"needs {num_bytes:,} bytes for {what} at byte {start:,}, where {left:,} are left")
        self.position = start + num_bytes
        return start

    def u32(self, what: str) -> int:
        value: int = _U32.unpack_from(self.data, self.take(4, what))[0]
        return value

    def u64(self, what: str) -> int:
        value: int = _U64.unpack_from(self.data, self.take(8, what))[0]
        return value

    def count(self, what: str, *, min_bytes: int) -> int:
        """A number of things to come, each of at least `min_bytes`."""
        count = self.u64(f"the number of {what}")
        left = self.end - self.position
        if count * min_bytes > left:
            raise self.damaged(f"announces {count:,} {what}, which {left:,} bytes cannot hold")
        return count

    def string(self) -> str:
        return self._text(self.u64("the length of a string"), "a string")

    def name(self, what: str) -> str:
        """A key or a tensor's name: a string of bounded length."""
        length = self.u64(f"the length of {what}")
        if length > MAX_NAME_BYTES:
            raise self.damaged(f"has {what} of {length:,} bytes, where {MAX_NAME_BYTES:,} are allowed")
        return self._text(length, what)

    def numbers(self, dtype: np.dtype[Any], count: int) -> npt.NDArray[Any]:
        """A view of the map; drop it before the map is closed."""
        start = self.take(count * dtype.itemsize, "numbers")
        return np.frombuffer(self.data, dtype, count, start)

    def strings(self, count: int) -> list[str]:
        """A vocabulary has hundreds of thousands of strings: one tight loop, and one check of the outcome."""
        data, position, end, unpack = self.data, self.position, self.end, _U64.unpack_from
        texts: list[str] = []
        try:
            for _ in range(count):
                start = position + 8
                position = start + unpack(data, position)[0]
                if position > end:
                    raise self.damaged(f"has a string of {position - start:,} bytes at byte {start:,}, past the end")
                texts.append(data[start:position].decode())
        except struct.error as error:
            raise self.damaged(f"ends after {len(texts):,} of {count:,} strings") from error
        except UnicodeDecodeError as error:
            raise self.damaged(f"has a string (number {len(texts):,}) that is not UTF-8") from error
        self.position = position
        return texts

    def _text(self, length: int, what: str) -> str:
        start = self.take(length, what)
        try:
            return self.data[start : self.position].decode()
        except UnicodeDecodeError as error:
            raise self.damaged(f"has {what} that is not UTF-8, at byte {start:,}") from error
