"""Models that compute differently have different identities; copies share one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from quire.checkpoint.checkpoint import open_checkpoint
from quire.checkpoint.identity import digest_files


def test_it_is_the_same_for_a_copy_and_in_another_process(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    content = os.urandom(5_000_000)
    first.write_bytes(content)
    second.write_bytes(content)
    identity = digest_files([], [first])
    assert digest_files([], [second]) == identity
    code = "import sys, pathlib; from quire.checkpoint.identity import digest_files as d; print(d([], [pathlib.Path(sys.argv[1])]))"
    done = subprocess.run([sys.executable, "-c", code, str(first)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == identity


def test_size_content_and_boundaries_count(tmp_path: Path) -> None:
    def identity(whole: bytes, sampled: bytes) -> str:
        (tmp_path / "whole").write_bytes(whole)
        (tmp_path / "sampled").write_bytes(sampled)
        return digest_files([tmp_path / "whole"], [tmp_path / "sampled"])

    weights = bytes(3_000_000)
    cases = [
        (b"ab", weights),
        (b"a", weights),
        (b"ab", weights + b"\0"),
        (b"ab", b"\1" + weights[1:]),
        (b"ab", weights[:-1] + b"\1"),
        (b"ab", weights[:1_050_000] + b"\1" + weights[1_050_001:]),
        (b"", b""),
        (b"", b"a"),
        (b"a", b""),
    ]
    assert len({identity(*case) for case in cases}) == len(cases)


def test_two_trainings_of_one_architecture_differ(tiny_llama: Path, tmp_path: Path) -> None:
    from tests.tiny_models import save_tiny_llama

    other = save_tiny_llama(tmp_path, seed=1)
    assert (other / "config.json").read_bytes() == (tiny_llama / "config.json").read_bytes()
    assert open_checkpoint(str(other)).identity != open_checkpoint(str(tiny_llama)).identity
