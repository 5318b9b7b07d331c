"""The tests of native kernels are skipped where there are none: that must not hide a build that broke."""

from __future__ import annotations

import os
import shutil

import pytest

from quire.kernels import native_module


@pytest.mark.skipif(shutil.which("c++") is None, reason="no compiler")
def test_built_where_there_is_a_compiler() -> None:
    assert "portable" in native_module.instruction_sets()


EXPECTED = os.environ.get("EXPECTED_SETS", "")


@pytest.mark.skipif(shutil.which("c++") is None, reason="no compiler")
@pytest.mark.skipif(not EXPECTED, reason="the Makefile names the emulated sets that it has built")
def test_sets_that_only_tests_use_are_built_by_make() -> None:
    """Without them most tests of tiles would be left out, and nobody would see it."""
    found = {name.removeprefix("emulated_") for name in native_module.emulated_sets()}
    lacking = set(EXPECTED.split(",")) - found
    # Its processors alone have the instructions of the others.
    if "avx512_vnni" not in native_module.instruction_sets():
        lacking &= {"tiles"}
    assert not lacking
