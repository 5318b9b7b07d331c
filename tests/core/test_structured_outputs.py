"""StructuredOutputs: exactly one form, sizes and depths within limits, whatever a caller passes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from quire.core.sampling_params import SamplingParams
from quire.core.structured_outputs import MAX_CHARACTERS, MAX_CHOICES, MAX_DEPTH, StructuredOutputs
from quire.errors import InvalidRequestError


def refusal(**fields: Any) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as refused:
        StructuredOutputs(**fields)
    return refused.value


@pytest.mark.parametrize(
    "fields", [{}, {"regex": "a", "choice": ["a"]}, {"json": {}, "json_object": True}, {"json_object": False}]
)
def test_exactly_one_form(fields: dict[str, Any]) -> None:
    assert "exactly one" in str(refusal(**fields))


@pytest.mark.parametrize(
    ("kind", "value", "source"),
    [
        ("json", {"b": 1, "a": [True]}, '{"b":1,"a":[true]}'),
        ("json", ' {"b": 1, "a": 2} ', '{"b":1,"a":2}'),
        ("json", {}, "{}"),
        ("regex", "a+", "a+"),
        ("choice", ["a", "é"], '["a", "\\u00e9"]'),
        ("grammar", 'start: "a"', 'start: "a"'),
        ("json_object", True, "true"),
        ("structural_tag", {"structures": []}, '{"structures":[]}'),
    ],
)
def test_every_form_is_kept_as_text_and_crosses_processes(kind: str, value: Any, source: str) -> None:
    wanted = StructuredOutputs(**{kind: value})
    assert (wanted.kind, wanted.source) == (kind, source)
    params = SamplingParams(structured_outputs=wanted)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params


@pytest.mark.parametrize(
    "fields",
    [
        {"json": "[]"},
        {"json": "{"},
        {"json": "true"},
        {"json": 3},
        {"json": {"a": float("nan")}},
        {"json": {"a": b"bytes"}},
        {"json": "[" * 200_000},
        {"regex": ""},
        {"regex": 5},
        {"choice": []},
        {"choice": ["a", ""]},
        {"choice": "abc"},
        {"choice": [1]},
        {"grammar": ["start"]},
        {"json_object": 1},
        {"structural_tag": "x"},
    ],
)
def test_a_value_of_the_wrong_kind_names_its_field(fields: dict[str, Any]) -> None:
    error = refusal(**fields)
    assert error.field == f"structured_outputs.{next(iter(fields))}"
    assert str(error.field) in str(error)


def test_sizes_and_depths_are_capped_and_the_limit_is_named() -> None:
    assert str(MAX_CHARACTERS) in str(refusal(regex="a" * (MAX_CHARACTERS + 1)))
    assert str(MAX_CHARACTERS) in str(refusal(json={"enum": ["x" * MAX_CHARACTERS]}))
    assert str(MAX_CHARACTERS) in str(refusal(choice=["a" * MAX_CHARACTERS, "b"]))
    assert str(MAX_CHOICES) in str(refusal(choice=["a"] * (MAX_CHOICES + 1)))
    assert str(MAX_DEPTH) in str(refusal(json=nested(MAX_DEPTH + 1)))
    StructuredOutputs(json=nested(MAX_DEPTH))


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth - 1):
        schema = {"items": schema}
    return schema


def test_a_schema_that_holds_itself_or_doubles_at_every_level_is_refused_at_once() -> None:
    circle: dict[str, Any] = {}
    circle["items"] = circle
    assert str(MAX_DEPTH) in str(refusal(json=circle))
    doubling: dict[str, Any] = {}
    for _ in range(50):
        doubling = {"a": doubling, "b": doubling}
    assert str(MAX_CHARACTERS) in str(refusal(json=doubling))


def test_the_sampling_field_takes_nothing_else() -> None:
    with pytest.raises(InvalidRequestError) as refused:
        SamplingParams(structured_outputs={"regex": "a"})  # type: ignore[arg-type]
    assert refused.value.field == "structured_outputs"
