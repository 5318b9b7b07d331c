"""A file of weights as kernels read them: what packing made, kept for the next start.

The blocks of memory lie one after the other, each on a page; then comes the index as JSON, and then its length and
checksum. A file is written beside its place and renamed, so there is either all of it or none.
"""

from __future__ import annotations

import os
import struct
import tempfile
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from quire.errors import in_words

PAGE = 4096
END = struct.Struct("<QI8s")
"""Bytes of the index, its checksum, MAGIC."""
MAGIC = b"QUIREPK1"
WORDS_IN_A_SUM = 512
UNFINISHED = ".part"
ABANDONED_AFTER_S = 3600.0
"""From then on a file that is still not renamed belongs to a process that died."""

Bytes = npt.NDArray[np.uint8]


class PackedFileError(Exception):
    """The file cannot be used; the message says why."""


class Extent(msgspec.Struct, frozen=True):
    offset: int
    num_bytes: int
    checksum: int


class Entry(msgspec.Struct, frozen=True):
    """`description` is the writer's, of built-in types."""

    description: Any
    blocks: list[Extent]


class _Index(msgspec.Struct, frozen=True):
    key: str
    entries: dict[str, Entry]


class PackedFile:
    """Open for reading. Its index is checked at once, each extent when it is read."""

    def __init__(self, path: Path, key: str) -> None:
        """Raises PackedFileError unless there is a whole file that was written with this key."""
        try:
            self._file = path.open("rb", buffering=0)
        except FileNotFoundError as error:
            raise PackedFileError("there is none yet") from error
        except OSError as error:
            raise PackedFileError(f"it could not be opened: {in_words(error)}") from error
        try:
            index = self._read_index()
            if index.key != key:
                raise PackedFileError("it was made of another file, or by another version")
            self.entries = index.entries
            with suppress(OSError):  # Where nothing may be written it is read all the same.
                os.utime(path)  # The files used last are kept longest.
        except OSError as error:
            self.close()
            raise PackedFileError(f"it could not be read: {in_words(error)}") from error
        except BaseException:
            self.close()
            raise

    def read(self, block: Extent, memory: Bytes) -> None:
        """Into memory of its size. Raises PackedFileError if these are not the bytes that were written."""
        if memory.nbytes != block.num_bytes:
            raise PackedFileError(f"it has {block.num_bytes:,} bytes for a weight of {memory.nbytes:,}")
        try:
            self._file.seek(block.offset)
            rest = memory.data
            while rest:
                num_read = self._file.readinto(rest)
                if not num_read:
                    raise PackedFileError("it ends too early")
                rest = rest[num_read:]
        except OSError as error:
            raise PackedFileError(f"it could not be read: {in_words(error)}") from error
        if checksum(memory) != block.checksum:
            raise PackedFileError("its bytes are not those that were written")

    def close(self) -> None:
        self._file.close()

    def _read_index(self) -> _Index:
        num_bytes = self._file.seek(0, os.SEEK_END)
        if num_bytes < END.size:
            raise PackedFileError("it is not whole")
        self._file.seek(num_bytes - END.size)
        index_bytes, expected, magic = END.unpack(self._file.read(END.size))
        first = num_bytes - END.size - index_bytes
        if magic != MAGIC or first < 0:
            raise PackedFileError("it is not whole")
        self._file.seek(first)
        data = self._file.read(index_bytes)
        if zlib.crc32(data) != expected:
            raise PackedFileError("its index is damaged")
        try:
            return msgspec.json.decode(data, type=_Index)
        except msgspec.DecodeError as error:
            raise PackedFileError(f"its index cannot be read: {error}") from error


class PackedFileWriter:
    """Writes beside `path`; `commit` puts it there, `discard` leaves nothing. All but `discard` raise OSError."""

    def __init__(self, path: Path, key: str) -> None:
        self._path = path
        self._key = key
        self._entries: dict[str, Entry] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = tempfile.NamedTemporaryFile(  # noqa: SIM115  (closed by commit and discard)
            dir=path.parent, prefix=f"{path.stem}-", suffix=UNFINISHED, delete=False
        )
        try:
            _remove_abandoned(Path(self._file.name))
        except BaseException:
            self.discard()
            raise

    def add(self, name: str, description: Any, blocks: Sequence[Bytes]) -> None:
        written = []
        for memory in blocks:
            self._file.write(b"\0" * (-self._file.tell() % PAGE))
            written.append(Extent(self._file.tell(), memory.nbytes, checksum(memory)))
            self._file.write(memory.data)
        self._entries[name] = Entry(description, written)

    def commit(self) -> int:
        """The file's size in bytes."""
        data = msgspec.json.encode(_Index(self._key, self._entries))
        self._file.write(data + END.pack(len(data), zlib.crc32(data), MAGIC))
        num_bytes = self._file.tell()
        self._file.close()
        os.replace(self._file.name, self._path)
        return num_bytes

    def discard(self) -> None:
        with suppress(OSError):  # It writes what is left, which a full disk refuses again; closed it is all the same.
            self._file.close()
        with suppress(OSError):
            Path(self._file.name).unlink(missing_ok=True)


def checksum(memory: Bytes) -> int:
    """Of contiguous bytes: CRC-32 of the sums of every 512 words, which are formed as fast as memory is read.

    Any one changed word changes its sum; whole groups that changed places change the CRC.
    """
    num_summed = memory.nbytes // (8 * WORDS_IN_A_SUM) * (8 * WORDS_IN_A_SUM)
    sums = memory[:num_summed].view("<u8").reshape(-1, WORDS_IN_A_SUM).sum(1)
    return zlib.crc32(memory[num_summed:].data, zlib.crc32(sums.data))


def keep_newest(directory: Path, suffix: str, num_files: int) -> None:
    """Of the files with this suffix remove those that were used longest ago. Raises OSError."""
    files = sorted(directory.glob(f"*{suffix}"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in files[num_files:]:
        path.unlink(missing_ok=True)


def _remove_abandoned(newest: Path) -> None:
    """What lay unfinished beside a new file for long before that was made, by the file system's own clock."""
    made = newest.stat().st_mtime
    for path in newest.parent.glob(f"*{UNFINISHED}"):
        with suppress(OSError):  # renamed meanwhile, or another user's
            if made - path.stat().st_mtime > ABANDONED_AFTER_S:
                path.unlink()
