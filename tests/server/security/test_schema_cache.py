"""CVE-2025-29770 and CVE-2025-32381: ten thousand different schemas leave no more behind than some thousand."""

from __future__ import annotations

import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.server.own_server import OwnServer, descendants, own_server, resident_bytes

LENGTH = 40_000
"""Of each schema. 16 MiB of them are kept in the API process, and 32 grammars in the worker."""
NUM_FILLING = 600


def ask(server: OwnServer, numbers: range) -> None:
    """Each with another schema."""

    def some(numbers: range) -> None:
        with server.client() as client:
            for number in numbers:
                schema = {"type": "integer", "description": f"{number} {'x' * LENGTH}"}
                body = {"prompt": "a", "max_tokens": 1, "structured_outputs": {"json": schema}}
                answer = client.post("/v1/completions", json=body)
                if answer.status_code != 200:
                    raise AssertionError(answer.text + server.log()[-3000:])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(some, (numbers[first::4] for first in range(4))))


def memory(server: OwnServer) -> int:
    return sum(resident_bytes(pid) for pid in (server.pid, *descendants(server.pid)))


def files(folder: Path) -> int:
    """Bytes on disk."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def check_bounded(model: str, num_more: int) -> None:
    """All that came after the caches were full takes less than half of its own length."""
    folder = Path(tempfile.mkdtemp(prefix="q"))
    places = {name: str(folder) for name in ("TMPDIR", "HOME", "XDG_CACHE_HOME")}
    try:
        flags = ("--num-threads", "1", "--num-blocks", "256")
        with own_server(model, *flags, environment=places) as server:
            ask(server, range(NUM_FILLING))
            before, on_disk = memory(server), files(folder)
            ask(server, range(NUM_FILLING, NUM_FILLING + num_more))
            assert memory(server) - before < min(num_more * LENGTH // 2, 64 * 2**20)
            assert files(folder) == on_disk
            assert server.status_of("/health") == 200
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_cve_2025_29770_different_schemas_leave_memory_and_disk_as_they_are(tiny_model: str) -> None:
    check_bounded(tiny_model, 1200)


@pytest.mark.nightly
def test_cve_2025_29770_ten_thousand_schemas(tiny_model: str) -> None:
    check_bounded(tiny_model, 10_000 - NUM_FILLING)
