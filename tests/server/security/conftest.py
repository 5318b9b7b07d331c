"""One server with keys and every route, for all of these tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.server.own_server import OwnServer, own_server

KEYS = ("sesame-1", "sesame-2")


@pytest.fixture(scope="package")
def guarded(smollm2: str) -> Iterator[OwnServer]:
    """Two keys, management on, a small body limit, on an engine that computes nothing."""
    flags = ["--executor", "null", "--num-blocks", "4096", "--enable-management", "--max-body-size", "1048576"]
    for key in reversed(KEYS):
        flags += ["--api-key", key]
    with own_server(smollm2, *flags) as server:
        yield server
