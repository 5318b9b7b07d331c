"""The physical cores of this process."""

from __future__ import annotations

import os
from pathlib import Path


def allowed_cores(root: Path = Path("/")) -> list[list[int]]:
    """Their CPUs, as far as this process may use them: hyper-threads are CPUs of one core.

    Where /sys below `root` does not tell, each CPU is a core.
    """
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    cores: dict[str | int, list[int]] = {}
    for cpu in sorted(allowed):
        # Not its number: a processor of several clusters may begin anew in each.
        siblings = root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        try:
            core: str | int = siblings.read_text()
        except OSError:
            core = cpu
        cores.setdefault(core, []).append(cpu)
    return list(cores.values())
