"""Bytes as people write and read them."""

from __future__ import annotations

import math
import re

from quire.errors import InvalidRequestError

KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40

UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
    "tib": TIB,
    "k": KIB,
    "m": MIB,
    "g": GIB,
    "t": TIB,
}
"""SI units are powers of 1000, IEC units powers of 1024, and so are their first letters alone."""

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*")


def parse_size(text: str) -> int:
    """Bytes of "8GiB", "512 MB" or a plain number of bytes. Raises InvalidRequestError."""
    match = _SIZE.fullmatch(text)
    unit = UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None or not 1 <= float(match[1]) * unit < math.inf:
        raise InvalidRequestError(
            f"A memory size is a positive number with a unit such as 8GiB or 500MB, got {text!r}.",
            field="memory",
            value=text,
        )
    return int(float(match[1]) * unit)


def format_size(num_bytes: float) -> str:
    """Three or four digits and an IEC unit: 94.5 MiB, 1.46 GiB."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(num_bytes) >= unit:
            value = num_bytes / unit
            return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {name}"
    return f"{num_bytes:.0f} B"
