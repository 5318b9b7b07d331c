"""Every kernel here writes into guarded memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.kernels.guarded import guarded_outputs


@pytest.fixture(autouse=True)
def guards() -> Iterator[None]:
    with guarded_outputs():
        yield
