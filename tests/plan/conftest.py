"""A machine to plan for."""

from __future__ import annotations

import pytest

from quire.plan.machine import Machine


@pytest.fixture
def machine() -> Machine:
    """A large server whose CPU multiplies bfloat16."""
    return Machine(
        free_memory=64 * 2**30,
        total_memory=64 * 2**30,
        memory_limited_by="the free memory of the machine",
        num_cores=8,
        num_cpus=16,
        cpu_name="test",
        cpu_features=frozenset({"avx512f", "amx_bf16"}),
        native_kernels=True,
    )
