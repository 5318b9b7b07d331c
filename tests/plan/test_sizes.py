from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.errors import InvalidRequestError
from quire.plan.sizes import format_size, parse_size


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("8GiB", 8 * 2**30),
        ("8GB", 8 * 10**9),
        ("500 MB", 500 * 10**6),
        ("1.5gib", 3 * 2**29),
        ("4096", 4096),
        ("8G", 2**33),
        ("512m", 2**29),
        ("3 K", 3072),
    ],
)
def test_parse(text: str, num_bytes: int) -> None:
    assert parse_size(text) == num_bytes


@pytest.mark.parametrize("text", ["", "GiB", "8 gibs", "-1GiB", "nan", "1e9", "0", "8GiB8", "9" * 400])
def test_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="8GiB"):
        parse_size(text)


@given(st.integers(1, 2**45))
def test_what_is_printed_can_be_read_back(num_bytes: int) -> None:
    assert parse_size(format_size(num_bytes)) == pytest.approx(num_bytes, rel=0.006)
