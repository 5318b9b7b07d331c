"""Where quire keeps what it fetched, and what is said where there is no such place."""

from __future__ import annotations

import pwd
from pathlib import Path

import pytest

from quire.checkpoint.cache_dir import cache_dir
from quire.errors import QuireError


def test_the_place_is_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("QUIRE_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_dir() == tmp_path / ".cache" / "quire"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert cache_dir() == tmp_path / "x" / "quire"
    monkeypatch.setenv("QUIRE_CACHE", "~/own")
    assert cache_dir() == tmp_path / "own"


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    for variable in ("HOME", "QUIRE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(QuireError, match=r"~/\.cache/quire; set QUIRE_CACHE"):
        cache_dir()
    monkeypatch.setenv("QUIRE_CACHE", "~no-such-user-here/x")
    with pytest.raises(QuireError, match="~no-such-user-here/x; set QUIRE_CACHE"):
        cache_dir()
