"""A knob of the wrong kind is refused by name, and none is taken for its opposite."""

from __future__ import annotations

from typing import Any

import pytest

from quire.config import EngineConfig
from quire.errors import InvalidRequestError


@pytest.mark.parametrize(
    ("knob", "value", "wanted"),
    [
        ("enforce_eager", "no", "true or false"),
        ("preallocate_kv_cache", 1, "true or false"),
        ("enable_prefix_caching", None, "true or false"),
        ("memory_utilization", "0.5", "a number"),
        ("memory_utilization", True, "a number"),
        ("model", None, "text"),
        ("max_num_batched_tokens", None, "a whole number"),
        ("block_size", 16.0, "a whole number >= 1"),
        ("seed", "abc", "a whole number >= 0"),
        ("num_threads", 0, "a whole number >= 1"),
    ],
)
def test_a_knob_of_another_kind(knob: str, value: Any, wanted: str) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        EngineConfig(**{knob: value})
    assert str(refusal.value) == f"{knob} must be {wanted}, got {value!r}."
    assert refusal.value.field == knob
