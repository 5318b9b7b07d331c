"""What a step frees stays with the process: the next step finds it, without page faults."""

from __future__ import annotations

import subprocess
import sys

import pytest

FAULTS = """
import resource
import torch
from quire.host.host_memory import memory_for_loading

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


FREED = """
import threading
from quire.host.host_memory import give_back_freed_memory

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1])
def make_and_drop():
    # Small blocks, of a thread's own heap, and one after them that stays.
    made = [bytes(1000 + n % 7) for n in range(200_000)]
    kept.append(bytes(1000))
kept = []
thread = threading.Thread(target=make_and_drop)
thread.start()
thread.join()
before = resident()
give_back_freed_memory()
print(before - resident())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator")
def test_what_a_thread_has_freed_goes_back() -> None:
    pages = int(subprocess.run([sys.executable, "-c", FREED], check=True, capture_output=True, text=True).stdout)
    # 200 MB, of 4 KiB pages.
    assert pages > 40_000
