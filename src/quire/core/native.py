"""The native kernels as control knows them: whether they were built, and what they cannot do."""

from __future__ import annotations

from importlib.util import find_spec

MAX_HEADS_PER_KV_HEAD = 64
"""Query heads that attend together in native attention (csrc/attention_items.h, MAX_QUERIES)."""

KEYS_PER_PANEL = 16
"""KV blocks of whole panels of so many tokens are read as they lie (csrc/kv_cache.h), others are copied first, value by value."""


_AVX2 = frozenset({"avx2", "fma", "bmi1", "bmi2", "f16c", "movbe", "abm"})
_AVX512 = _AVX2 | frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"})
INSTRUCTION_SETS: dict[str, frozenset[str]] = {
    "amx": _AVX512 | {"avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16", "amx_int8"},
    "avx512_bf16": _AVX512 | {"avx512_vnni", "avx512_bf16"},
    "avx512_vnni": _AVX512 | {"avx512_vnni"},
    "avx512": _AVX512,
    "avx_vnni": _AVX2 | {"avx_vnni"},
    "avx2": _AVX2,
    "dotprod": frozenset({"asimddp"}),
    "portable": frozenset(),
}
"""What the kernels are compiled for (csrc/instruction_sets.cpp), the fastest first, with the CPU features (/proc/cpuinfo) it takes."""


def instruction_sets(cpu_features: frozenset[str]) -> tuple[str, ...]:
    """Those that a CPU of these features has, the fastest first."""
    return tuple(name for name, needed in INSTRUCTION_SETS.items() if needed <= cpu_features)


def has_native_module() -> bool:
    """Whether this installation has them."""
    return find_spec("quire._native") is not None
