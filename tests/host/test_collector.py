"""What quire's own processes make at their start is no garbage."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from quire.core.native import has_native_module
from quire.host.collector import made_to_last

PROGRAM = """
import gc
from quire.host.collector import made_to_last
from quire.kernels.native_module import module

with made_to_last():
    ring = [module().Program(1)]
    ring.append(ring)
del ring
assert gc.isenabled() and gc.get_freeze_count()
"""


class Node:
    """Part of a cycle."""

    def __init__(self) -> None:
        self.itself = self


def test_the_collector_rests_inside_and_leaves_what_was_made_alone() -> None:
    gc.collect()
    try:
        with made_to_last():
            assert not gc.isenabled()
            node = Node()
        assert gc.isenabled()
        assert not any(found is node for found in gc.get_objects())
    finally:
        gc.unfreeze()


def test_it_runs_again_after_a_failure() -> None:
    try:
        with pytest.raises(ValueError, match="lost"), made_to_last():
            raise ValueError("lost")
        assert gc.isenabled()
    finally:
        gc.unfreeze()


@pytest.mark.skipif(not has_native_module(), reason="the native kernels were not built")
def test_native_objects_that_last_are_no_leaks() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
