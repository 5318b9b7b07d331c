"""What one rendering of a template may spend: processor time, text and list items made, the size of any one value."""

from __future__ import annotations

from dataclasses import dataclass

CHARS_PER_VALUE = 16
"""What every value counts for beside its characters: some of its memory, and the time to look at it."""


@dataclass(frozen=True, slots=True)
class TemplateLimits:
    """`seconds` is processor time of the rendering thread, so that a busy machine fails no honest template."""

    seconds: float = 2.0
    max_size: int = 8_000_000
    """Size of one value: its characters, and CHARS_PER_VALUE for it and every item in it, however deep."""
    max_total: int = 128_000_000
    """Characters and list items of all values made, together."""
