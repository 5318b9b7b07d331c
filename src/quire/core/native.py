"""The native kernels as control knows them: whether they were built, and what they cannot do."""

from __future__ import annotations

from importlib.util import find_spec

MAX_HEADS_PER_KV_HEAD = 64
"""Query heads that attend together in native attention (csrc/attention.cpp, MAX_QUERIES)."""


def has_native_module() -> bool:
    """Whether this installation has them."""
    return find_spec("quire._native") is not None
