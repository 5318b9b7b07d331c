"""What is wrong with a body is found once, and said shortly, however much of it there is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.exceptions import RequestValidationError
from pydantic import TypeAdapter, ValidationError

from quire.server.app import make_app  # noqa: F401  (all schemas)
from quire.server.errors import describe
from quire.server.routes.tokenize import TokenizeRequest
from quire.server.schemas.chat import ChatCompletionRequest
from quire.server.schemas.completions import CompletionRequest
from quire.server.schemas.fields import HIDDEN_TAG, RequestBody
from quire.server.schemas.responses import ResponsesRequest

MANY = 3000


def bodies(kind: type[RequestBody] = RequestBody) -> Iterator[type[RequestBody]]:
    for own in kind.__subclasses__():
        yield own
        yield from bodies(own)


def parts(schema: Any) -> Iterator[dict[str, Any]]:
    """Of a core schema: itself and all schemas in it."""
    if isinstance(schema, dict):
        yield schema
        for key, part in schema.items():
            if key != "metadata":
                yield from parts(part)
    elif isinstance(schema, list | tuple):
        for part in schema:
            yield from parts(part)


def parts_of_bodies(kind: str) -> dict[str, list[dict[str, Any]]]:
    return {
        body.__name__: [part for part in parts(body.__pydantic_core_schema__) if part.get("type") == kind]
        for body in bodies()
    }


def test_every_list_of_every_body_ends_with_its_first_bad_item() -> None:
    found = parts_of_bodies("list")
    assert sum(map(len, found.values())) > 20
    assert [name for name, own in found.items() if not all(one.get("fail_fast") for one in own)] == []


def test_no_error_names_a_member_of_a_union() -> None:
    """Which no request has: `tool_choice.str`. A field that takes several kinds of values says so in one message."""
    assert not any(parts_of_bodies("union").values())
    found = parts_of_bodies("tagged-union")
    assert sum(map(len, found.values())) > 10
    assert [
        name for name, own in found.items() for one in own if not all(t.startswith(HIDDEN_TAG) for t in one["choices"])
    ] == []


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (CompletionRequest, {"prompt": [-1] * MANY}),
        (CompletionRequest, {"prompt": "x", "allowed_token_ids": [-1] * MANY}),
        (CompletionRequest, {"prompt": "x", "logit_bias": dict.fromkeys(map(str, range(MANY)), "x")}),
        (ChatCompletionRequest, {"messages": [{"role": "user", "content": [1] * MANY}] * MANY}),
        (ChatCompletionRequest, {"messages": [{"role": "user", "content": "x"}], "tools": [1] * MANY}),
        (ResponsesRequest, {"input": "x", "metadata": dict.fromkeys(map(str, range(MANY)), 1)}),
        (ResponsesRequest, {"input": [{"type": "message", "role": "user", "content": [1] * 100}] * MANY}),
        (TokenizeRequest, {"messages": [1] * MANY}),
    ],
)
def test_few_errors_of_many_bad_items(kind: Any, body: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(kind).validate_python(body)
    assert caught.value.error_count() < 10


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "x", "response_format": {"type": "z" * 100_000}},
        {"prompt": "x", "logit_bias": {"z" * 100_000: "x"}},
        {"prompt": "x" * 100_000, "n": "y" * 100_000},
    ],
)
def test_an_error_does_not_repeat_all_that_was_given(body: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        CompletionRequest.model_validate(body)
    errors = [{**error, "loc": ("body", *error["loc"])} for error in caught.value.errors()]
    status, answer, _ = describe(RequestValidationError(errors))
    assert status == 400
    assert len(str(answer)) < 1500


def test_what_is_nested_too_deeply_is_the_clients() -> None:
    status, answer, _ = describe(RecursionError())
    assert (status, "nested too deeply" in answer.error.message) == (400, True)
