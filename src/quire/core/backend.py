"""The names of kernels and attention backends, which belong together."""

from __future__ import annotations

from typing import Literal

Backend = Literal["cpu", "torch", "reference"]
BackendChoice = Literal["auto", Backend]
"""`auto`: as `plan/backend.py` chooses."""
