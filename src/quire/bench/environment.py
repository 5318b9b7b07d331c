"""What a result depends on beside the code: versions and the machine. Imports none of the packages it names."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata
from typing import Any

from quire import __version__
from quire.core.native import instruction_sets
from quire.plan.machine import NATIVE_BFLOAT16, read_machine
from quire.plan.sizes import format_size

PACKAGES = ("torch", "numpy", "tokenizers", "huggingface-hub", "msgspec", "transformers", "matplotlib")
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "KMP_AFFINITY", "OMP_PROC_BIND", "LD_PRELOAD")
MATRIX_FEATURES = (
    frozenset({"avx2", "avx_vnni", "avx512f", "avx512_vnni", "amx_tile", "amx_int8", "asimd", "i8mm"}) | NATIVE_BFLOAT16
)


def collect_environment() -> dict[str, Any]:
    """Versions and machine facts."""
    machine = read_machine()
    return {
        "quire": __version__,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        **{package: _version(package) for package in PACKAGES},
        "cpu": machine.cpu_name,
        "cores": machine.num_cores,
        "cpu features": " ".join(sorted(machine.cpu_features & MATRIX_FEATURES)) or "unknown",
        "native kernels": ", ".join(instruction_sets(machine.cpu_features)) if machine.native_kernels else "not built",
        "native bfloat16": machine.native_bfloat16,
        "memory": format_size(machine.total_memory),
        "memory free": f"{format_size(machine.free_memory)} ({machine.memory_limited_by})",
        **{name: os.environ[name] for name in THREAD_VARIABLES if name in os.environ},
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
