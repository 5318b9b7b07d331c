"""A fake server that knows no model: clients send it text."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.fake_server import FakeServer


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer("fake") as server:
        yield server
