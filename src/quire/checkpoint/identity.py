"""A cheap digest of a model's files, the same in every process: it keys what depends on the weights, like cached KV."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

_SAMPLE_BYTES = 4096
_MAX_SAMPLES = 1024
_MIN_STRIDE = 1 << 20


def digest_files(read_whole: Iterable[Path], sampled: Iterable[Path]) -> str:
    """SHA-256 (hex) over small files and over samples of large ones, with their sizes, in the order given.

    A large file gives 4 KiB at every MiB (at larger steps beyond 1 GiB), its beginning and its end: under 8 MiB are
    read. Two models differ in it unless all their differences fall between samples, as an edit of a few bytes may;
    training never leaves that much alone. Paths and times do not count, so a copy has the same identity.
    """
    digest = hashlib.sha256(b"quire model identity 1")
    for path in read_whole:
        content = path.read_bytes()
        digest.update(b"whole %d:" % len(content))
        digest.update(content)
    for path in sampled:
        _add_samples(digest, path)
    return digest.hexdigest()


def _add_samples(digest: hashlib._Hash, path: Path) -> None:
    with path.open("rb", buffering=0) as file:
        num_bytes = file.seek(0, 2)
        digest.update(b"sampled %d:" % num_bytes)
        stride = max(_MIN_STRIDE, num_bytes // _MAX_SAMPLES)
        for offset in [*range(0, num_bytes, stride), max(0, num_bytes - _SAMPLE_BYTES)]:
            file.seek(offset)
            digest.update(file.read(_SAMPLE_BYTES))
