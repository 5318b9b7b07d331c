"""Packed weights kept in quire's cache, so that the next start reads them instead of converting them once more.

What is found is used only if its key and every checksum fit; anything else is made again, and one line of the log says
why. A start never fails for the cache.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from quire import __version__
from quire.checkpoint.cache_dir import cache_dir
from quire.checkpoint.checkpoint import Checkpoint
from quire.checkpoint.packed_file import Bytes, Entry, PackedFile, PackedFileError, PackedFileWriter, keep_newest
from quire.core.native import has_native_module
from quire.errors import QuireError
from quire.kernels.array import Array
from quire.kernels.dtype import DType
from quire.kernels.native_module import current_instruction_set
from quire.quantization.method import PackedMethod, StoredWeight
from quire.quantization.panels import PanelsTable
from quire.quantization.pieces import Piece, empty_piece, pieces_of, weight_of

logger = logging.getLogger("quire")

SUFFIX = ".packed"
MAX_FILES = 4
"""That are kept, of all models together."""
MADE_BY = ("checkpoint", "core", "models", "quantization", "kernels")
"""quire's own folders that decide on a weight's bytes."""


@contextmanager
def kept_weights(
    method: PackedMethod, checkpoint: Checkpoint, dtype: DType, quantization: str
) -> Iterator[KeptWeights]:
    """`method` with a file: read where there is one that fits, else written, if all goes well inside."""
    try:
        folder = cache_dir() / "packed"
    except QuireError as error:
        logger.info("Packed weights are not kept: %s", error)
        yield KeptWeights(method, Path(), None, None)
        return
    path = folder / f"{_slot(checkpoint, dtype, quantization)}{SUFFIX}"
    key = packing_key(checkpoint, dtype, quantization)
    source, writer = None, None
    try:
        source = PackedFile(path, key)
    except PackedFileError as error:
        logger.info("Weights are packed anew: of %s, %s.", path, error)
        writer = _new_writer(path, key)
    kept = KeptWeights(method, path, source, writer)
    try:
        yield kept
        kept.commit()
    finally:
        kept.close()


class KeptWeights:
    """A QuantMethod that asks the file first."""

    def __init__(
        self, method: PackedMethod, path: Path, source: PackedFile | None, writer: PackedFileWriter | None
    ) -> None:
        self._method = method
        self._path = path
        self._source = source
        self._writer = writer
        self.normalizes, self.apply, self.apply_gated = method.normalizes, method.apply, method.apply_gated
        self.search, self.rotates_heads = method.search, method.rotates_heads

    def load(self, parts: Sequence[StoredWeight], dtype: DType) -> Any:
        found = self._restore(parts)
        if found is None:
            found = self._method.load(parts, dtype)
            self._add(parts, found)
        return found

    def load_table(self, part: StoredWeight, dtype: DType) -> PanelsTable:
        found = self._restore([part])
        if found is None:
            found = self._method.load_table_weight(part, dtype)
            self._add([part], found)
        return PanelsTable(found, dtype)

    def commit(self) -> None:
        """Put what was written in its place."""
        if self._source is not None:
            logger.info("Weights were read packed from %s.", self._path)
        if self._writer is None:
            return
        try:
            num_bytes = self._writer.commit()
            keep_newest(self._path.parent, SUFFIX, MAX_FILES)
        except OSError as error:
            logger.info("Packed weights could not be kept in %s: %s.", self._path, error)
        else:
            logger.info("Packed weights are kept in %s (%d MB) for the next start.", self._path, num_bytes >> 20)
            self._writer = None

    def close(self) -> None:
        if self._source is not None:
            self._source.close()
        if self._writer is not None:
            self._writer.discard()

    def _restore(self, parts: Sequence[StoredWeight]) -> Any | None:
        if self._source is None:
            return None
        try:
            entry = self._source.entries.get(_name(parts))
            if entry is None:
                raise PackedFileError(f"it has no {_name(parts)}")
            weight = _read(self._source, entry, parts)
        except PackedFileError as error:
            logger.info("Weights are packed anew: of %s, %s.", self._path, error)
            self._source.close()
            self._source = None
            with suppress(OSError):  # The next start finds none and writes it whole.
                self._path.unlink()
            return None
        for part in parts:
            part.pass_over()
        return weight

    def _add(self, parts: Sequence[StoredWeight], weight: Any) -> None:
        if self._writer is None:
            return
        described = pieces_of(weight)
        try:
            self._writer.add(
                _name(parts),
                msgspec.to_builtins([piece for piece, _ in described]),
                [_bytes(memory) for _, memory in described],
            )
        except OSError as error:
            logger.info("Packed weights could not be kept in %s: %s.", self._path, error)
            self._writer.discard()
            self._writer = None


def packing_key(checkpoint: Checkpoint, dtype: DType, quantization: str) -> str:
    """A digest of all that decides on the bytes: the checkpoint's files, the dtype, the kind of weights, quire's own code and the
    instruction set, by which rotated rows may be rounded otherwise (csrc/rounding.h).

    The identity of a checkpoint is made of samples; sizes and times show an edit that falls between them.
    """
    own = Path(__file__).parent.parent
    code = sorted(path for folder in MADE_BY for path in (own / folder).rglob("*.py"))
    stated = [_state(path) for path in (*checkpoint.weight_files, *code, *_native_files())]
    instruction_set = current_instruction_set() if has_native_module() else None
    decisive = [__version__, sys.byteorder, checkpoint.identity, str(dtype), quantization, instruction_set, stated]
    return hashlib.sha256(msgspec.json.encode(decisive)).hexdigest()


def _native_files() -> list[Path]:
    spec = find_spec("quire._native")
    return [] if spec is None or spec.origin is None else [Path(spec.origin)]


def _state(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _slot(checkpoint: Checkpoint, dtype: DType, quantization: str) -> str:
    """The place of a model's weights of one kind: what another version left there is replaced."""
    files = [os.fspath(path.resolve()) for path in checkpoint.weight_files]
    return f"{hashlib.sha256(msgspec.json.encode(files)).hexdigest()[:16]}-{dtype}-{quantization}"


def _new_writer(path: Path, key: str) -> PackedFileWriter | None:
    try:
        return PackedFileWriter(path, key)
    except OSError as error:
        logger.info("Packed weights could not be kept in %s: %s.", path, error)
        return None


def _name(parts: Sequence[StoredWeight]) -> str:
    return " ".join(part.name for part in parts)


def _read(source: PackedFile, entry: Entry, parts: Sequence[StoredWeight]) -> Any:
    try:
        pieces = msgspec.convert(entry.description, list[Piece])
    except msgspec.ValidationError as error:
        raise PackedFileError(f"its description of {_name(parts)} is none: {error}") from error
    outputs = sum(part.num_outputs for part in parts)
    if len(pieces) != len(entry.blocks) or any(piece.num_inputs != parts[0].num_inputs for piece in pieces):
        raise PackedFileError(f"it describes another {_name(parts)}")
    if sum(piece.last - piece.first for piece in pieces) != outputs:
        raise PackedFileError(f"it describes another {_name(parts)}")
    memories = [empty_piece(piece) for piece in pieces]
    for memory, block in zip(memories, entry.blocks, strict=True):
        source.read(block, _bytes(memory))
    return weight_of(pieces, memories)


def _bytes(memory: Array) -> Bytes:
    assert memory.is_contiguous()
    return memory.stored.reshape(math.prod(memory.shape)).view(np.uint8)
