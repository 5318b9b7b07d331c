"""docs/security.md is kept true: each row names tests, and they exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "security.md").read_text()
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith(("| seen in", "| case"))]
LATER_CASES = {21, *range(33, 38)}
"""Of parallel ranks, Redis and disaggregation, which are not built yet."""


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip()[:40])
def test_each_row_names_tests_that_exist(row: str) -> None:
    """`file::beginning of a name`, below tests/."""
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", row)
    assert named or row.rstrip(" |").endswith("not built yet"), row
    for file, beginning in named:
        assert re.search(rf"^def {beginning}", (ROOT / "tests" / file).read_text(), re.MULTILINE), (
            f"{file}::{beginning}"
        )


def test_every_case_has_a_row_and_a_test_of_its_number() -> None:
    for number in set(range(1, 41)) - LATER_CASES:
        (row,) = (row for row in ROWS if row.startswith(f"| {number:02} |"))
        assert f"case_{number:02}" in row


def test_every_advisory_in_the_name_of_a_test_is_in_the_table() -> None:
    sources = [path.read_text() for path in (ROOT / "tests").rglob("test_*.py")]
    ids = {found for text in sources for found in re.findall(r"^def test_cve_(\d{4}_\d+)_", text, re.MULTILINE)}
    assert len(ids) > 30
    assert sorted(found for found in ids if found.replace("_", "-", 1) not in PAGE) == []
