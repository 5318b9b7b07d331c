"""Tools and tool_choice as clients send them; bad ones are refused with the field and the rule."""

from __future__ import annotations

from typing import Any

import pytest

from quire.errors import InvalidRequestError
from quire.server.tools import definitions
from quire.server.tools.definitions import MAX_SCHEMA_DEPTH, MAX_TOOLS, ToolChoice, parse_tool_choice, parse_tools


def function(name: Any = "f", parameters: Any = None, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, **fields}}


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth - 1):
        schema = {"items": schema}
    return schema


def test_the_three_shapes() -> None:
    schema = {"type": "object", "properties": {"a": {}}, "required": ["a"]}
    chat = function("f", schema, description="d", strict=True)
    responses = {"type": "function", "name": "f", "parameters": schema, "description": "d", "strict": True}
    anthropic = {"name": "f", "input_schema": schema, "description": "d", "strict": True}
    tools = [parse_tools([item])[0] for item in (chat, responses, anthropic)]
    assert tools[0] == tools[1] == tools[2]
    assert (tools[0].name, tools[0].description, tools[0].parameters, tools[0].strict) == ("f", "d", schema, True)


def test_a_tool_without_parameters_takes_an_object() -> None:
    (tool,) = parse_tools([{"type": "function", "function": {"name": "f"}}])
    assert tool.parameters == {"type": "object", "properties": {}}
    assert parse_tools([function(parameters={})])[0].parameters == {"type": "object"}
    assert tool.as_template_input()["function"]["name"] == "f"
    assert parse_tools(None) == ()


@pytest.mark.parametrize(
    ("tool", "field"),
    [
        ({"type": "code_interpreter"}, "tools[0].type"),
        ({"type": ["function"], "function": {"name": "f"}}, "tools[0].type"),
        ({"function": {"name": "f"}}, "tools[0].type"),
        ({"type": "bash_20250124", "name": "f", "input_schema": {}}, "tools[0].type"),
        ({"type": "function", "function": "f"}, "tools[0]"),
        ({"type": "function", "function": {}}, "tools[0].name"),
        (function(""), "tools[0].name"),
        (function("a b"), "tools[0].name"),
        (function("a" * 129), "tools[0].name"),
        (function("f\n"), "tools[0].name"),
        (function("é"), "tools[0].name"),
        (function(7), "tools[0].name"),
        (function(description=7), "tools[0].description"),
        (function(description="x" * 16_385), "tools[0].description"),
        (function(parameters="{}"), "tools[0].parameters"),
        (function(parameters=[]), "tools[0].parameters"),
        (function(parameters={"type": "array"}), "tools[0].parameters.type"),
        (function(parameters={"properties": []}), "tools[0].parameters"),
        (function(parameters={"required": "a"}), "tools[0].parameters"),
        (function(parameters={"required": [{}]}), "tools[0].parameters"),
        (function(parameters=nested(MAX_SCHEMA_DEPTH + 1)), "tools[0].parameters"),
        (function(parameters=nested(100_000)), "tools[0].parameters"),
        (function(parameters={"title": "x" * 65_536}), "tools[0].parameters"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_tools(tool: Any, field: str) -> None:
    """vLLM 2025-48942/48943/48944, 2026-105757: a bad schema or tool type is an error of the request."""
    with pytest.raises(InvalidRequestError) as refusal:
        parse_tools([tool])
    assert refusal.value.field == field


def test_bad_sets_of_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidRequestError, match="Two tools are named 'f'") as refusal:
        parse_tools([{"type": "web_search"}, function(), function()], functions_only=True)
    assert refusal.value.field == "tools[2]", "as the request counts them"
    parse_tools([function(f"f{index}") for index in range(MAX_TOOLS)])
    with pytest.raises(InvalidRequestError, match="129 tools"):
        parse_tools([function(f"f{index}") for index in range(MAX_TOOLS + 1)])
    assert parse_tools([function(parameters=nested(MAX_SCHEMA_DEPTH))])
    monkeypatch.setattr(definitions, "MAX_ALL_SCHEMAS_CHARS", 100)
    with pytest.raises(InvalidRequestError, match="together"):
        parse_tools([function(name, {"title": "x" * 50}) for name in "ab"])


TOOLS = parse_tools([function("f"), function("g")])


@pytest.mark.parametrize(
    ("value", "choice"),
    [
        (None, ToolChoice("auto")),
        ("auto", ToolChoice("auto")),
        ("none", ToolChoice("none")),
        ("required", ToolChoice("required")),
        ({"type": "function", "function": {"name": "g"}}, ToolChoice("named", "g")),
        ({"type": "function", "name": "g"}, ToolChoice("named", "g")),
        ({"type": "auto"}, ToolChoice("auto")),
        ({"type": "any"}, ToolChoice("required")),
        ({"type": "tool", "name": "g"}, ToolChoice("named", "g")),
        ({"type": "none"}, ToolChoice("none")),
    ],
)
def test_choices(value: Any, choice: ToolChoice) -> None:
    assert parse_tool_choice(value, TOOLS) == choice


@pytest.mark.parametrize(
    "value",
    [
        "",
        "any",
        1,
        [],
        {},
        {"type": "function"},
        {"type": "function", "function": {"name": 1}},
        {"type": "tool", "name": "h"},
    ],
)
def test_bad_choices(value: Any) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        parse_tool_choice(value, TOOLS)
    assert refusal.value.field == "tool_choice"


def test_without_tools_nothing_can_be_called() -> None:
    assert parse_tool_choice(None, ()) == parse_tool_choice("auto", ()) == ToolChoice("none")
    for value in ("required", {"type": "function", "name": "f"}):
        with pytest.raises(InvalidRequestError, match="offers no tools"):
            parse_tool_choice(value, ())
