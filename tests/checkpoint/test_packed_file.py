"""The checksum of packed weights sees every change, and files that died half written go away."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import numpy as np
import pytest

from quire.checkpoint.packed_file import (
    ABANDONED_AFTER_S,
    PackedFile,
    PackedFileError,
    PackedFileWriter,
    checksum,
)

GROUP_BYTES = 4096


def some_bytes(num_bytes: int) -> np.ndarray:
    return np.random.default_rng(num_bytes).integers(0, 256, num_bytes, dtype=np.uint8)


@pytest.mark.parametrize("num_bytes", [1, 7, 4095, 4096, 4097, 3 * 4096 + 9])
def test_a_bit_anywhere_changes_the_checksum(num_bytes: int) -> None:
    memory = some_bytes(num_bytes)
    first = checksum(memory)
    assert checksum(memory.copy()) == first
    for offset in {0, num_bytes // 3, num_bytes // 2, num_bytes - 1, min(4095, num_bytes - 1)}:
        for bit in (1, 128):
            memory[offset] ^= bit
            assert checksum(memory) != first
            memory[offset] ^= bit


def test_groups_that_change_places_change_the_checksum() -> None:
    memory = some_bytes(2 * GROUP_BYTES)
    assert checksum(np.concatenate([memory[GROUP_BYTES:], memory[:GROUP_BYTES]])) != checksum(memory)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "a.packed"
    blocks = [some_bytes(5000), some_bytes(0), some_bytes(4096)]
    writer = PackedFileWriter(path, "key")
    writer.add("first", {"any": [1, "thing"]}, blocks[:2])
    writer.add("second", None, blocks[2:])
    assert not path.exists()
    assert writer.commit() == path.stat().st_size
    file = PackedFile(path, "key")
    assert file.entries["first"].description == {"any": [1, "thing"]}
    found = [np.ones(block.nbytes, np.uint8) for block in blocks]
    for block, memory in zip([*file.entries["first"].blocks, *file.entries["second"].blocks], found, strict=True):
        file.read(block, memory)
    file.close()
    assert all(np.array_equal(block, memory) for block, memory in zip(blocks, found, strict=True))


def test_another_key_or_size_is_refused(tmp_path: Path) -> None:
    writer = PackedFileWriter(tmp_path / "a.packed", "key")
    writer.add("name", None, [some_bytes(100)])
    writer.commit()
    with pytest.raises(PackedFileError, match="another file, or by another version"):
        PackedFile(tmp_path / "a.packed", "other key")
    file = PackedFile(tmp_path / "a.packed", "key")
    with pytest.raises(PackedFileError, match="100 bytes for a weight of 99"):
        file.read(file.entries["name"].blocks[0], np.empty(99, np.uint8))
    file.close()


def test_a_discarded_file_leaves_nothing_and_abandoned_ones_go(tmp_path: Path) -> None:
    abandoned = tmp_path / "a-x.part"
    abandoned.write_bytes(b"half")
    written = abandoned.stat().st_mtime - ABANDONED_AFTER_S - 10
    os.utime(abandoned, (written, written))
    (tmp_path / "b-y.part").write_bytes(b"still written by another process")
    PackedFileWriter(tmp_path / "a.packed", "key").discard()
    assert [path.name for path in tmp_path.iterdir()] == ["b-y.part"]


def test_on_a_full_disk_a_discarded_file_leaves_nothing(tmp_path: Path) -> None:
    """What a write left in the buffer is refused once more when the file is closed."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    writer = PackedFileWriter(tmp_path / "a.packed", "key")
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            writer.add("name", None, [some_bytes(5000)] * 3)
        writer.discard()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_removed_stays_and_hinders_nothing(tmp_path: Path) -> None:
    """As another user's unfinished file; a folder in its place is refused even to root, who runs the tests too."""
    (tmp_path / "a-x.part").mkdir()
    os.utime(tmp_path / "a-x.part", (0, 0))
    PackedFileWriter(tmp_path / "a.packed", "key").commit()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a-x.part", "a.packed"]


def test_a_folder_that_cannot_be_swept_gets_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as unlisted:
        unlisted.setattr(Path, "glob", refuse)
        with pytest.raises(PermissionError):
            PackedFileWriter(tmp_path / "a.packed", "key")
    assert list(tmp_path.iterdir()) == []
