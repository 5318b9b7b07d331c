"""What this process may use of the machine: memory, cores, and the instructions that decide on a dtype."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

from quire.core.native import has_native_module
from quire.host.cores import allowed_cores

NATIVE_BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""Feature flags (x86, then Arm) of CPUs that multiply bfloat16 in hardware. Others convert to float32 and back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Sizes in bytes. `memory_limited_by` says which of the limits below `free_memory` is."""

    free_memory: int
    total_memory: int
    memory_limited_by: str
    num_cores: int
    """Physical ones that this process may use: hyper-threads share the units that matrix products saturate."""
    num_cpus: int
    """Hyper-threads too, whatever its quota is."""
    cpu_name: str
    cpu_features: frozenset[str]
    native_kernels: bool
    """Whether they were built with this installation."""

    @property
    def native_bfloat16(self) -> bool:
        return bool(self.cpu_features & NATIVE_BFLOAT16)


def read_machine(root: Path = Path("/")) -> Machine:
    """Read /proc and /sys below `root`; where they are missing (macOS), half of the memory counts as free."""
    proc_info = _proc_meminfo(root)
    total = proc_info.get("MemTotal") or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limits = [(proc_info.get("MemAvailable", total // 2), "the free memory of the machine")]
    limits += [(free, "the cgroup's memory limit") for free in _cgroup_free_memory(root)]
    free, limited_by = min(limits)
    name, features = _cpu(root)
    cores = allowed_cores(root)
    return Machine(
        free_memory=max(0, free),
        total_memory=total,
        memory_limited_by=limited_by,
        num_cores=min([len(cores), *_cgroup_cores(root)]),
        num_cpus=sum(map(len, cores)),
        cpu_name=name,
        cpu_features=features,
        native_kernels=has_native_module(),
    )


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return None


def _read_int(path: Path) -> int | None:
    """None where the file is missing or says "max"."""
    text = (_read(path) or "").strip()
    return int(text) if text.lstrip("-").isdigit() else None


def _proc_meminfo(root: Path) -> dict[str, int]:
    """/proc/meminfo in bytes; empty where there is none."""
    text = _read(root / "proc/meminfo") or ""
    return {name: 1024 * int(kib) for name, kib in re.findall(r"^(\S+):\s+(\d+) kB$", text, re.MULTILINE)}


def _cgroup_folders(root: Path, controller: str) -> list[tuple[Path, int]]:
    """This process's cgroup folders for a controller, leaf to mount point, with the cgroup version of each.

    A container may see only the mount point, while /proc/self/cgroup names a path outside it.
    """
    folders = []
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            mount, version = root / "sys/fs/cgroup", 2
        elif controller in controllers.split(","):
            mount, version = root / "sys/fs/cgroup" / controller, 1
        else:
            continue
        leaf = mount / path.lstrip("/")
        parents = [folder for folder in (leaf, *leaf.parents) if folder.is_relative_to(mount)]
        folders += [(folder, version) for folder in parents if folder.is_dir()]
    return folders


def _cgroup_free_memory(root: Path) -> list[int]:
    """What each limited cgroup above this process has left. File cache it could drop counts as free."""
    found = []
    for folder, version in _cgroup_folders(root, "memory"):
        limit = _read_int(folder / ("memory.max" if version == 2 else "memory.limit_in_bytes"))
        used = _read_int(folder / ("memory.current" if version == 2 else "memory.usage_in_bytes"))
        if limit is None or used is None:
            continue
        stat = dict(line.split(" ", 1) for line in (_read(folder / "memory.stat") or "").splitlines())
        reclaimable = int(stat.get("inactive_file" if version == 2 else "total_inactive_file", "0"))
        found.append(limit - used + reclaimable)
    return found


def _cgroup_cores(root: Path) -> list[int]:
    """Whole cores of each CPU quota above this process; a quota below one core still runs one thread."""
    found = []
    for folder, version in _cgroup_folders(root, "cpu"):
        if version == 2:
            quota_text, _, period_text = (_read(folder / "cpu.max") or "max").strip().partition(" ")
            quota = int(quota_text) if quota_text.isdigit() else None
            period = int(period_text) if period_text.isdigit() else None
        else:
            quota = _read_int(folder / "cpu.cfs_quota_us")
            period = _read_int(folder / "cpu.cfs_period_us")
        if quota is not None and quota > 0 and period:
            found.append(max(1, quota // period))
    return found


def _cpu(root: Path) -> tuple[str, frozenset[str]]:
    """Model name and feature flags of the first CPU in /proc/cpuinfo."""
    name, features = platform.processor() or platform.machine(), frozenset[str]()
    for line in (_read(root / "proc/cpuinfo") or "").split("\n\n")[0].splitlines():
        key, _, value = (part.strip() for part in line.partition(":"))
        if key == "model name":
            name = value
        elif key in ("flags", "Features"):
            features = frozenset(value.split())
    return name, features
