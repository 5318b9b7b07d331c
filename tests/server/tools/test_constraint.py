"""Forced calls: the grammar takes calls that fit the tools, in the model's own format, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from tests.server.tools.byte_matcher import FIRST_SPECIAL_ID, accepts, is_valid
from tests.server.tools.samples import parse_whole

from quire.errors import InvalidRequestError
from quire.server.reasoning.registry import REASONING_STYLES
from quire.server.tools.constraint import MAX_CALLS, tool_constraint
from quire.server.tools.definitions import Tool, ToolChoice, parse_tools
from quire.server.tools.registry import TOOL_FORMATS
from quire.server.tools.tool_format import CallLayout

WEATHER_SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "unit": {"$ref": "#/$defs/unit"},
    },
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"unit": {"enum": ["C", "F"]}},
}
TOOLS = parse_tools(
    [
        {"type": "function", "function": {"name": "weather", "parameters": WEATHER_SCHEMA}},
        {
            "type": "function",
            "function": {"name": "now", "parameters": {"properties": {}, "additionalProperties": False}},
        },
    ]
)
REQUIRED = ToolChoice("required")
GOOD = {"city": 'Zürich "\\', "days": 3, "unit": "C"}
BAD: tuple[dict[str, Any], ...] = ({"city": 1}, {"days": 1}, {"city": "x", "days": 10}, {"city": "x", "unit": "K"})


def grammar(name: str, choice: ToolChoice = REQUIRED, tools: Sequence[Tool] = TOOLS, **options: Any) -> str:
    constraint = tool_constraint(tools, choice, TOOL_FORMATS[name], **options)
    assert constraint is not None
    return constraint


def written(layout: CallLayout, *calls: tuple[str, dict[str, Any]]) -> str:
    return layout.write(calls)


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_required_takes_fitting_calls_and_nothing_else(name: str) -> None:
    layout = TOOL_FORMATS[name].layout
    lark = grammar(name)
    for arguments in (GOOD, {"city": ""}, {"city": "x", "unit": "F"}):
        assert accepts(lark, written(layout, ("weather", arguments)))
    assert accepts(lark, written(layout, ("now", {})))
    for arguments in BAD:
        assert not accepts(lark, written(layout, ("weather", arguments)))
    assert not accepts(lark, written(layout, ("now", {"a": 1})))
    assert not accepts(lark, written(layout, ("other", {})))
    assert not accepts(lark, "")
    assert not accepts(lark, "Hello")
    assert not accepts(lark, written(layout, ("now", {})) + " Done.")


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_what_the_grammar_takes_the_parser_reads(name: str) -> None:
    layout = TOOL_FORMATS[name].layout
    calls = [("weather", GOOD), ("now", {})][: 1 if layout.between is None else 2]
    text = written(layout, *calls)
    assert accepts(grammar(name), text)
    answer = parse_whole(name, text)
    assert answer.content is None
    assert [(call.name, json.loads(call.arguments)) for call in answer.tool_calls] == calls


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_parallel_calls(name: str) -> None:
    layout = TOOL_FORMATS[name].layout
    two = written(layout, ("now", {}), ("weather", {"city": "x"}))
    assert accepts(grammar(name), two) == (layout.between is not None)
    assert not accepts(grammar(name, parallel=False), two)
    if layout.between is not None:
        assert accepts(grammar(name), written(layout, *[("now", {})] * MAX_CALLS))
        assert not accepts(grammar(name), written(layout, *[("now", {})] * (MAX_CALLS + 1)))


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_named_takes_one_call_of_that_tool(name: str) -> None:
    layout = TOOL_FORMATS[name].layout
    lark = grammar(name, ToolChoice("named", "now"))
    assert accepts(lark, written(layout, ("now", {})))
    assert not accepts(lark, written(layout, ("weather", {"city": "x"})))
    assert not accepts(lark, written(layout, ("now", {}), ("now", {})))


def test_special_tokens_are_taken_whole() -> None:
    token_ids = {"[TOOL_CALLS]": FIRST_SPECIAL_ID, "[ARGS]": FIRST_SPECIAL_ID + 1}
    lark = grammar("mistral_args", token_ids=token_ids)
    text = "[TOOL_CALLS]now[ARGS]{}"
    assert accepts(lark, text, list(token_ids))
    assert not accepts(lark, text, list(token_ids), spelled=True)


@pytest.mark.parametrize("special", [False, True])
def test_reasoning_comes_first_where_the_model_has_it(special: bool) -> None:
    style = REASONING_STYLES["think"]
    tokens = ["<think>", "</think>"] if special else []
    options = {"reasoning": style, "token_ids": {text: FIRST_SPECIAL_ID + index for index, text in enumerate(tokens)}}
    call = written(TOOL_FORMATS["hermes"].layout, ("now", {}))
    lark = grammar("hermes", **options)
    for text in (call, f"<think>\nso <tool_call> {{\n</think>\n\n{call}"):
        assert accepts(lark, text, tokens)
    for text in ("<think>never ends", f"aloud {call}", f"<think>a</think> words {call}"):
        assert not accepts(lark, text, tokens)
    inside = grammar("hermes", starts_inside_reasoning=True, **options)
    assert accepts(inside, f"so\n</think>\n{call}", tokens)
    assert not accepts(inside, call, tokens)


def test_optional_keywords_come_in_any_selection() -> None:
    names = ("a", "b", "c")
    schema = {"properties": {name: {"type": "integer"} for name in names}, "required": ["b"]}
    (tool,) = parse_tools([{"type": "function", "function": {"name": "f", "parameters": schema}}])
    lark = grammar("pythonic", tools=[tool])
    for text in ("[f(b=1)]", "[f(a=1, b=2)]", "[f(b=1, c=2)]", "[f(a=1, b=2, c=3)]"):
        assert accepts(lark, text)
    for text in ("[f()]", "[f(a=1)]", "[f(a=1, c=2)]", "[f(, b=1)]", "[f(b=1,)]", "[f(b=1 c=2)]"):
        assert not accepts(lark, text)


def test_schemas_that_fit_no_keywords_are_unpacked() -> None:
    schema = {"properties": {"not-a-name": {"type": "integer"}}, "required": ["not-a-name"]}
    (tool,) = parse_tools([{"type": "function", "function": {"name": "now", "parameters": schema}}])
    text = '[now(**{"not-a-name": 1})]'
    assert accepts(grammar("pythonic", tools=[tool]), text)
    assert parse_whole("pythonic", text).tool_calls[0].arguments == '{"not-a-name": 1}'


def test_references_within_the_properties_hold() -> None:
    schema = {"properties": {"a": {"type": "integer"}, "b": {"$ref": "#/properties/a"}}, "required": ["b"]}
    (tool,) = parse_tools([{"type": "function", "function": {"name": "f", "parameters": schema}}])
    assert accepts(grammar("pythonic", tools=[tool]), '[f(**{"b": 1})]')
    assert not accepts(grammar("pythonic", tools=[tool]), '[f(**{"b": "x"})]')


def test_only_strict_tools_insist_on_every_keyword() -> None:
    schema = {"properties": {"a": {"type": "string", "format": "unheard-of"}}}
    for strict in (False, True):
        function = {"name": "f", "parameters": schema, "strict": strict}
        (tool,) = parse_tools([{"type": "function", "function": function}])
        assert is_valid(grammar("hermes", tools=[tool])) != strict


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_arguments_the_schema_does_not_name_are_not_made_up(name: str) -> None:
    named = {"properties": {"a": {"type": "integer"}}}
    layout = TOOL_FORMATS[name].layout
    for schema, is_open in ((None, False), (named, False), ({**named, "additionalProperties": True}, True), ({}, True)):
        if layout.keyword_arguments and schema:
            continue  # keyword arguments are always those that are named
        (tool,) = parse_tools([{"type": "function", "function": {"name": "f", "parameters": schema}}])
        lark = grammar(name, tools=[tool])
        text = layout.write([("f", {"b": 1})])
        text = text.replace("b=1", '**{"b": 1}') if is_open else text
        assert accepts(lark, text) == is_open


def test_schemas_cannot_leave_their_place() -> None:
    """Texts of a request that look like grammar stay data."""
    evil = '"} | /.*/ \n start: /.*/ %json {'
    schema = {"properties": {evil: {"const": evil}}, "required": [evil], "x-guidance": {"whitespace_pattern": ".*"}}
    (tool,) = parse_tools([{"type": "function", "function": {"name": "f", "description": evil, "parameters": schema}}])
    for name, form in TOOL_FORMATS.items():
        lark = grammar(name, tools=[tool])
        assert not accepts(lark, "anything")
        if not form.layout.keyword_arguments:
            assert accepts(lark, written(form.layout, ("f", {evil: evil})))


@pytest.mark.parametrize("mode", ["none", "auto"])
def test_what_forces_no_call_constrains_nothing(mode: Any) -> None:
    assert tool_constraint(TOOLS, ToolChoice(mode), TOOL_FORMATS["hermes"]) is None


@pytest.mark.parametrize("name", [name for name, form in TOOL_FORMATS.items() if not form.bare_opener])
def test_calls_or_an_answer_of_a_shape(name: str) -> None:
    shape = {"type": "object", "properties": {"done": {"type": "boolean"}}, "required": ["done"]}
    lark = grammar(name, ToolChoice("auto"), otherwise=shape)
    assert accepts(lark, '{"done": true}')
    assert accepts(lark, written(TOOL_FORMATS[name].layout, ("weather", GOOD)))
    for text in ('{"done": 1}', "{}", "Hello", written(TOOL_FORMATS[name].layout, ("weather", BAD[0]))):
        assert not accepts(lark, text)
    style = REASONING_STYLES["think"]
    thinking = grammar(name, ToolChoice("auto"), otherwise=shape, reasoning=style)
    for reasoning in ("", f"{style.start}Hm{style.end}\n"):
        assert accepts(thinking, reasoning + '{"done": true}')
        assert accepts(thinking, reasoning + written(TOOL_FORMATS[name].layout, ("now", {})))


@pytest.mark.parametrize("name", [name for name, form in TOOL_FORMATS.items() if form.bare_opener])
def test_calls_that_begin_as_json_does_cannot_be_told_from_it(name: str) -> None:
    assert tool_constraint(TOOLS, ToolChoice("auto"), TOOL_FORMATS[name], otherwise={"type": "object"}) is None


def test_without_a_format_no_call_can_be_forced() -> None:
    with pytest.raises(InvalidRequestError, match="--tool-call-parser"):
        tool_constraint(TOOLS, REQUIRED, None)
