"""What a step frees stays with the process: the next step finds it, without page faults."""

from __future__ import annotations

import subprocess
import sys

import pytest

FAULTS = """
import resource
import torch
from quire.worker.host_memory import memory_for_loading

with memory_for_loading():
    loaded = [torch.ones(1 << 20) for _ in range(5)]
def step():
    return [torch.ones(1 << 20) for _ in range(20)]  # 4 MiB each
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator")
def test_second_step_faults_nothing_in() -> None:
    command = [sys.executable, "-c", FAULTS]
    faults = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    # Given back, the five steps' blocks would be 102,400 pages.
    assert faults < 20_000
