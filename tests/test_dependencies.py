"""Every dependency is justified on its page, and what a user must install is used by what they run."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PAGE = (ROOT / "docs" / "dependencies.md").read_text().lower()
SOURCE = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
MODULES = {"pyzmq": "zmq"}
BY_NAME = {"httptools", "uvloop"}
"""uvicorn imports these, which are named to it."""


def names(requirements: list[str]) -> set[str]:
    found = (re.match(r"[\w-]+", requirement) for requirement in requirements)
    return {match[0] for match in found if match is not None} - {"quire"}


def test_each_is_on_the_page() -> None:
    extras = PROJECT["optional-dependencies"].values()
    for name in names(PROJECT["dependencies"]).union(*map(names, extras)):
        assert name in PAGE or name.startswith("opentelemetry-"), name


def test_each_that_a_user_installs_is_used() -> None:
    for name in names(PROJECT["dependencies"]) - BY_NAME:
        module = MODULES.get(name, name.replace("-", "_"))
        assert re.search(rf"^\s*(?:import|from) {module}\b", SOURCE, re.MULTILINE), name
    for name in BY_NAME:
        assert re.search(rf"\b{name}\b", SOURCE), name
