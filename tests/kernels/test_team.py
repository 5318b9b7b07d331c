"""The kernels' threads: several callers at a time, more threads and fewer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from quire.core.native import has_native_module
from quire.host.cores import allowed_cores
from quire.kernels import native_module
from quire.kernels.array import Arrays
from quire.kernels.dtype import DType
from quire.kernels.native_linear import DensePanels, empty_dense, linear, pack_
from quire.kernels.native_rows import add
from quire.kernels.recording import Arena
from quire.kernels.tensor import Numbers

pytestmark = pytest.mark.skipif(not has_native_module(), reason="the native kernels were not built")


@pytest.fixture(scope="module")
def weight() -> DensePanels:
    made = empty_dense(512, 256, DType.FLOAT32)
    made.memory[:] = Arrays().of(np.random.default_rng(0).standard_normal((512, 256), np.float32))
    return pack_(made)


def product(weight: DensePanels, num_threads: int) -> Numbers:
    native_module.use_num_threads(num_threads)
    x = Arrays().of(np.random.default_rng(1).standard_normal((20, 256), np.float32))
    return linear(x, weight).stored


def test_callers_at_the_same_time_each_get_their_own_result(weight: DensePanels) -> None:
    before = native_module.thread_count()
    try:
        expected = product(weight, 1)
    finally:
        native_module.use_num_threads(before)
    with ThreadPoolExecutor(4) as callers:
        found = list(callers.map(lambda n: product(weight, 1 + n % 4), range(200)))
    assert all(np.array_equal(result, expected) for result in found)


def test_a_program_runs_on_no_more_threads_than_its_arrays_have_room_for(weight: DensePanels) -> None:
    before = native_module.thread_count()
    try:
        native_module.use_num_threads(1)
        recording = native_module.new_recording(Arena())
        x = Arrays().of(np.random.default_rng(1).standard_normal((20, 256), np.float32))
        with recording:
            found = linear(x, weight)
        expected = product(weight, 1)
        native_module.use_num_threads(3)
        native_module.run(recording)
    finally:
        native_module.use_num_threads(before)
    assert recording.num_threads == 1
    assert np.array_equal(found.stored, expected)


def test_all_members_treat_the_smallest_numbers_as_the_caller_does() -> None:
    """Torch's switch is that of the calling thread."""
    x = np.full((4096, 64), 1e-39, np.float32)
    found = []
    before = native_module.thread_count()
    try:
        native_module.use_num_threads(4)
        for flushed in (True, False):
            assert torch.set_flush_denormal(flushed)
            found.append(add(Arrays().of(x), Arrays().of(x)).stored)
    finally:
        torch.set_flush_denormal(False)
        native_module.use_num_threads(before)
    assert (found[0] == 0).all()
    assert (found[1] > 0).all()


# A process of its own, where no other test has started threads.
SETUP = """
import os, sys, threading
import numpy as np
from quire.kernels import native_module
from quire.kernels.array import Arrays
from quire.kernels.dtype import DType
from quire.kernels.native_linear import linear, empty_dense, pack_
from quire.kernels.recording import Arena

weight = empty_dense(512, 256, DType.FLOAT32)
weight.memory[:] = Arrays().of(np.random.default_rng(0).standard_normal((512, 256), np.float32))
pack_(weight)
x = Arrays().of(np.random.default_rng(1).standard_normal((20, 256), np.float32))

def product(num_threads):
    native_module.use_num_threads(num_threads)
    return linear(x, weight).stored

expected = product(1).copy()
"""

# Each child has to do without any of its parent's threads.
# Without torch: a child that uses torch's OpenMP threads after a fork waits for them for ever.
FORKED = """
def compute(num_threads):
    while not done.is_set():
        product(num_threads)

done = threading.Event()
callers = [threading.Thread(target=compute, args=(n,)) for n in (1, 2, 3, 4)]
for caller in callers:
    caller.start()
statuses = []
for num_threads in (1, 2, 4, 2):
    child = os.fork()
    if child == 0:
        os._exit(not all(np.array_equal(product(num_threads), expected) for _ in range(20)))
    statuses.append(os.waitpid(child, 0)[1])
done.set()
for caller in callers:
    caller.join()
assert "torch" not in sys.modules
assert np.array_equal(product(4), expected)
print(statuses)
"""

# Members lose the core to each other: what they leave of their shares others take, and a program soon runs on fewer.
CROWDED = """
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
results = [product(5) for _ in range(20)]
recording = native_module.new_recording(Arena())
with recording:
    outputs = [linear(x, weight) for _ in range(20)]
sizes = []
for _ in range(20):
    sizes.append(native_module.run(recording))
    results += [output.stored.copy() for output in outputs]
print(all(np.array_equal(result, expected) for result in results) and min(sizes) < sizes[0] == 5)
"""

# Threads of a team of all cores stay where they are, and leave when it is smaller.
SEATED = """
allowed = sorted(os.sched_getaffinity(0))

others = set(os.listdir("/proc/self/task"))

def seats_of(num_threads):
    assert np.array_equal(product(num_threads), expected)
    helpers = set(os.listdir("/proc/self/task")) - others
    return sorted(sorted(os.sched_getaffinity(int(helper))) for helper in helpers)

native_module.module().use_cores([[cpu] for cpu in allowed])
everywhere = [allowed] * (len(allowed) - 1)
for _ in range(20):
    seats = seats_of(len(allowed))
    assert len(seats) == len(allowed) - 1
    assert all(len(cpus) == 1 for cpus in seats)
    assert len({cpu for [cpu] in seats}) == len(seats)
    assert os.sched_getaffinity(0) == set(allowed), "the caller's own"
    threading.Event().wait(0.01)

# Who may use one CPU alone gives its helpers no other one.
os.sched_setaffinity(0, {allowed[0]})
assert seats_of(len(allowed)) == [[allowed[0]]] * (len(allowed) - 1)
os.sched_setaffinity(0, set(allowed))
assert seats_of(len(allowed)) != everywhere

# Cores that are not there, and other cores than those before.
native_module.module().use_cores([[cpu + 512] for cpu in allowed])
assert seats_of(len(allowed)) == everywhere
native_module.module().use_cores([allowed])
assert seats_of(len(allowed)) == everywhere
print("as they should")
"""


def printed(script: str) -> str:
    without_site = ["-S"] if sys.flags.no_site else []  # where this process found a module built for the sanitizers
    command = [sys.executable, *without_site, "-W", "ignore::DeprecationWarning", "-c", SETUP + script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            found, _ = process.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return found.strip()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_forked_while_teams_compute_computes_with_threads_of_its_own() -> None:
    assert printed(FORKED) == "[0, 0, 0, 0]"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system cannot keep threads on one CPU")
def test_members_without_a_core_of_their_own_change_no_bits() -> None:
    assert printed(CROWDED) == "True"


@pytest.mark.skipif(sys.platform != "linux", reason="threads are kept on cores on Linux")
@pytest.mark.skipif(len(allowed_cores()) < 2, reason="one core is the caller's")
def test_helpers_of_a_team_of_all_cores_have_one_each() -> None:
    assert printed(SEATED) == "as they should"
