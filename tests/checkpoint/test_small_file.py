"""Files that others made are read whole only if they end, and soon."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from quire.checkpoint.small_file import read_small_file, read_small_text


def test_a_file_up_to_its_limit_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_small_file(path, 5) == b"12345"
    with pytest.raises(OSError, match="5 bytes, where 4 are allowed"):
        read_small_file(path, 4)


def test_text_is_read_as_python_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes("a\r\nä\rb\n".encode())
    assert read_small_text(path, 100) == path.read_text(encoding="utf-8") == "a\nä\nb\n"
    path.write_bytes(b"\xff")
    with pytest.raises(UnicodeDecodeError):
        read_small_text(path, 100)


def test_what_blocks_or_never_ends_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    for name in ("pipe", "link"):
        with pytest.raises(OSError, match="a pipe or a device, not a regular file"):
            read_small_file(tmp_path / name, 100)


def test_what_there_is_none_of_is_told_apart(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_small_file(tmp_path / "none", 100)
    with pytest.raises(IsADirectoryError):
        read_small_file(tmp_path, 2**20)
