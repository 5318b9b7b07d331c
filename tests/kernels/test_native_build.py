"""The tests of native kernels are skipped where there are none: that must not hide a build that broke."""

from __future__ import annotations

import shutil

import pytest

from quire.kernels import native


@pytest.mark.skipif(shutil.which("c++") is None, reason="no compiler")
def test_built_where_there_is_a_compiler() -> None:
    assert "portable" in native.instruction_sets()
