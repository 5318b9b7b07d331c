"""The documents are kept true: the files, types and options they name exist. docs/lab.md is a log of what was."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "architecture.md").read_text()
SOURCE = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))

DOCUMENTS = [
    *(ROOT / "docs" / "howto").glob("*.md"),
    *(ROOT / "docs" / "adr").glob("*.md"),
    *(
        ROOT / name
        for name in ("README.md", "CHANGELOG.md", "docs/architecture.md", "docs/dependencies.md", "docs/security.md")
    ),
]
FOLDERS = ("src", "csrc", "tests", "benchmarks", "docs", "deploy")
FILES = {f"/{path.relative_to(ROOT)}" for folder in FOLDERS for path in (ROOT / folder).rglob("*.*")}
FILES |= {f"/{path.name}" for path in ROOT.glob("*.*")}
CPP = "\n".join(path.read_text() for path in [*(ROOT / "csrc").rglob("*.*"), ROOT / "CMakeLists.txt"])
PYTHON = "\n".join(path.read_text() for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_what_a_document_names_is_there(document: Path) -> None:
    """Files by their whole path or the end of it, links, names of Python in backticks, and options of commands."""
    text = document.read_text()
    for name in re.findall(r"`([\w/]+\.(?:py|h|cpp|md))`", text):
        assert "NAME" in name or any(file.endswith(f"/{name}") for file in FILES), name
    for link in re.findall(r"\]\((?!http)([^)#]+)\)", text):
        assert (document.parent / link).exists(), link
    for name in re.findall(r"`(?:[\w.]+\.)?(_?[A-Z][A-Z_]{2,}|[A-Z][a-z]\w+)`", text):
        assert re.search(rf"\b{name}\b", PYTHON + CPP), name
    for option in re.findall(r"(?<![\w-])--([a-z][a-z-]+)", re.sub(r"(?m)^pip .*", "", text)):
        assert option in PYTHON or option.removeprefix("no-").replace("-", "_") in PYTHON, option


def test_named_files_exist() -> None:
    for name in re.findall(r"`([\w/]+\.(?:py|h|cpp))`", PAGE):
        assert (ROOT / "src" / "quire" / name).exists() or (ROOT / name).exists(), name


def test_named_folders_exist() -> None:
    for name in re.findall(r"`(\w+)/`", PAGE):
        assert (ROOT / "src" / "quire" / name).is_dir() or (ROOT / name).is_dir(), name


def test_named_types_and_methods_exist() -> None:
    for name in re.findall(r"`([A-Z]\w+)(?:s|`)", PAGE):
        assert re.search(rf"\b{name}\b", SOURCE), name
    for owner, method in re.findall(r"`([A-Z]\w+)\.(\w+)`", PAGE):
        assert re.search(rf"class {owner}\b", SOURCE), owner
        assert re.search(rf"def {method}\b", SOURCE), method


def test_every_package_folder_is_in_the_table() -> None:
    for folder in (ROOT / "src" / "quire").iterdir():
        if folder.is_dir() and (folder / "__init__.py").exists():
            assert f"`{folder.name}/`" in PAGE, folder.name
