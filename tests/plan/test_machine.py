"""Reading limits: the smallest one wins, wherever it is set, in both cgroup versions and in a container."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from quire.plan.machine import read_machine

GIB = 2**30
MEMINFO = "MemTotal:       16777216 kB\nMemFree:         1048576 kB\nMemAvailable:    8388608 kB\n"


def write(root: Path, path: str, text: object) -> None:
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(f"{text}\n")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path, "proc/meminfo", MEMINFO)
    return tmp_path


def test_without_cgroups_the_available_memory_counts(root: Path) -> None:
    machine = read_machine(root)
    assert machine.free_memory == 8 * GIB
    assert machine.total_memory == 16 * GIB
    assert machine.memory_limited_by == "the free memory of the machine"


def test_cgroup_2_limit_counts_droppable_file_cache_as_free(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/work/job")
    write(root, "sys/fs/cgroup/work/job/memory.max", 4 * GIB)
    write(root, "sys/fs/cgroup/work/job/memory.current", 3 * GIB)
    write(root, "sys/fs/cgroup/work/job/memory.stat", f"anon 7\ninactive_file {GIB}")
    machine = read_machine(root)
    assert machine.free_memory == 2 * GIB
    assert machine.memory_limited_by == "the cgroup's memory limit"


def test_the_limit_of_a_parent_cgroup_binds(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/work/job")
    for folder, limit in (("work", 2 * GIB), ("work/job", "max")):
        write(root, f"sys/fs/cgroup/{folder}/memory.max", limit)
        write(root, f"sys/fs/cgroup/{folder}/memory.current", GIB)
    assert read_machine(root).free_memory == GIB


def test_cgroup_1_limit(root: Path) -> None:
    write(root, "proc/self/cgroup", "5:cpu,cpuacct:/a\n4:memory:/a\n1:name=systemd:/\n0::/")
    write(root, "sys/fs/cgroup/memory/a/memory.limit_in_bytes", 6 * GIB)
    write(root, "sys/fs/cgroup/memory/a/memory.usage_in_bytes", 3 * GIB)
    write(root, "sys/fs/cgroup/memory/a/memory.stat", f"inactive_file 1\ntotal_inactive_file {GIB}")
    assert read_machine(root).free_memory == 4 * GIB


def test_a_container_that_sees_only_the_mount_point(root: Path) -> None:
    write(root, "proc/self/cgroup", "4:memory:/outside/the/container")
    write(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", 2 * GIB)
    write(root, "sys/fs/cgroup/memory/memory.usage_in_bytes", GIB)
    assert read_machine(root).free_memory == GIB


def test_no_limit_in_cgroup_1_is_a_huge_number(root: Path) -> None:
    write(root, "proc/self/cgroup", "4:memory:/")
    write(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", 9223372036854771712)
    write(root, "sys/fs/cgroup/memory/memory.usage_in_bytes", GIB)
    assert read_machine(root).free_memory == 8 * GIB


def test_more_used_than_allowed_leaves_nothing(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/")
    write(root, "sys/fs/cgroup/memory.max", GIB)
    write(root, "sys/fs/cgroup/memory.current", 2 * GIB)
    assert read_machine(root).free_memory == 0


@pytest.fixture
def eight_hyperthreads(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """CPUs i and i + 4 share a core."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    for cpu in range(8):
        write(root, f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", f"{cpu % 4},{cpu % 4 + 4}")
    return root


def test_hyperthreads_count_once(eight_hyperthreads: Path) -> None:
    assert read_machine(eight_hyperthreads).num_cores == 4


def test_affinity_limits_the_cores(eight_hyperthreads: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 4, 5}, raising=False)
    assert read_machine(eight_hyperthreads).num_cores == 2


@pytest.mark.parametrize(("quota", "cores"), [("250000 100000", 2), ("50000 100000", 1), ("max 100000", 4)])
def test_cgroup_2_cpu_quota(eight_hyperthreads: Path, quota: str, cores: int) -> None:
    write(eight_hyperthreads, "proc/self/cgroup", "0::/")
    write(eight_hyperthreads, "sys/fs/cgroup/cpu.max", quota)
    assert read_machine(eight_hyperthreads).num_cores == cores


@pytest.mark.parametrize(("quota", "cores"), [(300000, 3), (-1, 4)])
def test_cgroup_1_cpu_quota(eight_hyperthreads: Path, quota: int, cores: int) -> None:
    write(eight_hyperthreads, "proc/self/cgroup", "5:cpu,cpuacct:/")
    write(eight_hyperthreads, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", quota)
    write(eight_hyperthreads, "sys/fs/cgroup/cpu/cpu.cfs_period_us", 100000)
    assert read_machine(eight_hyperthreads).num_cores == cores


@pytest.mark.parametrize(
    ("flags", "native"),
    [("flags\t\t: fpu avx512f amx_bf16", True), ("Features\t: fp asimd bf16", True), ("flags\t\t: fpu avx512f", False)],
)
def test_bfloat16_in_hardware(root: Path, flags: str, native: bool) -> None:
    write(root, "proc/cpuinfo", f"processor\t: 0\nmodel name\t: Chip 9\n{flags}\n\nprocessor\t: 1\nflags\t: other")
    machine = read_machine(root)
    assert machine.native_bfloat16 is native
    assert machine.cpu_name == "Chip 9"


def test_a_system_without_proc_still_answers(tmp_path: Path) -> None:
    machine = read_machine(tmp_path)
    assert machine.free_memory == machine.total_memory // 2 > 0
    assert machine.num_cores >= 1
    assert not machine.native_bfloat16
