"""docs/architecture.md is kept true: the files and types it names exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "architecture.md").read_text()
SOURCE = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))


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
