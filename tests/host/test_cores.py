"""Which CPUs are one core."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire.host import cores
from quire.host.cores import allowed_cores


@pytest.fixture
def two_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of two cores each, with two hardware threads each: CPUs 0 and 4 are the first core."""
    for cpu in range(8):
        topology = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/topology"
        topology.mkdir(parents=True)
        (topology / "physical_package_id").write_text(f"{cpu % 4 // 2}\n")
        (topology / "core_id").write_text(f"{cpu % 2}\n")
        (topology / "thread_siblings_list").write_text(f"{cpu % 4},{cpu % 4 + 4}\n")
    monkeypatch.setattr(cores.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    return tmp_path


def test_hardware_threads_of_a_core_are_one(two_packages: Path) -> None:
    assert allowed_cores(two_packages) == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_only_allowed_cpus_count(two_packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores.os, "sched_getaffinity", lambda _: {1, 4, 5}, raising=False)
    assert allowed_cores(two_packages) == [[1, 5], [4]]


def test_cores_of_several_clusters_may_have_one_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Linux numbers those of an RK3588: one package of four, two and two cores."""
    for cpu, number in enumerate([0, 1, 2, 3, 0, 1, 0, 1]):
        topology = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/topology"
        topology.mkdir(parents=True)
        (topology / "physical_package_id").write_text("0\n")
        (topology / "core_id").write_text(f"{number}\n")
        (topology / "thread_siblings_list").write_text(f"{cpu}\n")
    monkeypatch.setattr(cores.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert allowed_cores(tmp_path) == [[cpu] for cpu in range(8)]


def test_each_cpu_is_a_core_where_nothing_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores.os, "sched_getaffinity", lambda _: {2, 0}, raising=False)
    assert allowed_cores(tmp_path) == [[0], [2]]
