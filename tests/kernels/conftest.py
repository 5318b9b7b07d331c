"""Every kernel here writes into guarded memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.kernels.guarded import guarded_outputs

from quire.kernels import native_module


@pytest.fixture(autouse=True)
def guards() -> Iterator[None]:
    with guarded_outputs():
        yield


@pytest.fixture(params=native_module.instruction_sets())
def instruction_set(request: pytest.FixtureRequest) -> Iterator[str]:
    """In use on this thread."""
    native_module.use_instruction_set(request.param)
    yield request.param
    native_module.use_instruction_set(None)
