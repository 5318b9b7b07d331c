"""Tools and earlier calls reach the prompt whatever the template can do."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.server.tools.samples import parse_whole

from quire.errors import InvalidRequestError
from quire.server.tools.definitions import parse_tools
from quire.server.tools.prompt import for_template, with_calls_as_text, with_readable_calls, with_tools_in_prompt
from quire.server.tools.registry import TOOL_FORMATS
from quire.server.tools.tool_format import ToolFormat

TOOLS = parse_tools(
    [{"type": "function", "function": {"name": "now", "description": "The time {utc}", "parameters": {}}}]
)
USER = {"role": "user", "content": "What time is it?"}
CALL = {"id": "call_1", "type": "function", "function": {"name": "now", "arguments": '{"zone": "é"}'}}
ASKED = [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}]
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "noon"}


def test_tools_are_listed_in_the_system_text() -> None:
    first, second = with_tools_in_prompt([{"role": "system", "content": "Be brief."}, USER], TOOLS)
    assert first["role"] == "system"
    assert first["content"].startswith("Be brief.\n\n")
    listed = first["content"].split("<tools>\n")[1].split("\n</tools>")[0]
    assert json.loads(listed) == TOOLS[0].as_template_input()["function"]
    assert second == USER
    assert [message["role"] for message in with_tools_in_prompt([USER], TOOLS)] == ["system", "user"]
    assert with_tools_in_prompt([USER], ()) == [USER]


@pytest.mark.parametrize("tool_format", TOOL_FORMATS.values(), ids=TOOL_FORMATS)
def test_the_form_shown_is_the_one_read(tool_format: ToolFormat) -> None:
    shown = with_tools_in_prompt([USER], TOOLS, tool_format)[0]["content"]
    example = shown.split("in this form, and nothing after it:\n")[1].split("\nIf no function")[0]
    (call,) = parse_whole(tool_format.name, example.replace("function_name", "now")).tool_calls
    assert call.arguments == '{"argument_name": "value"}'


@pytest.mark.parametrize("tool_format", TOOL_FORMATS.values(), ids=TOOL_FORMATS)
def test_earlier_calls_and_results_become_text(tool_format: ToolFormat) -> None:
    plain = with_calls_as_text([*ASKED, RESULT, RESULT, USER], tool_format)
    assert [message["role"] for message in plain] == ["user", "assistant", "user", "user"]
    assert parse_whole(tool_format.name, plain[1]["content"]).tool_calls[0].arguments == '{"zone": "é"}'
    assert "tool_calls" not in plain[1]
    assert plain[2]["content"] == "\n".join(["<tool_response>\nnoon\n</tool_response>"] * 2)


def test_calls_are_text_only_where_the_template_knows_none() -> None:
    deepseek, hermes = TOOL_FORMATS["deepseek"], TOOL_FORMATS["hermes"]
    messages, tools = for_template([*ASKED, RESULT], TOOLS, hermes, "{{ tools }}<tool_call>")
    assert (messages[1]["tool_calls"][0]["function"]["arguments"], len(messages)) == ({"zone": "é"}, 3)
    assert tools == [TOOLS[0].as_template_input()]
    messages, tools = for_template([*ASKED, RESULT], TOOLS, deepseek, deepseek.signs[0] + "```json")
    assert (messages[0]["role"], messages[2:], tools) == ("system", [ASKED[1], RESULT], None)
    messages, tools = for_template([*ASKED, RESULT], TOOLS, hermes, "{{ messages }}")
    assert ([message["role"] for message in messages], tools) == (["system", "user", "assistant", "user"], None)
    assert for_template([USER], (), None, None) == ([USER], None)


def test_templates_get_arguments_in_the_type_they_expect() -> None:
    read = with_readable_calls(ASKED, TOOL_FORMATS["hermes"])
    assert read[1]["tool_calls"][0] == {**CALL, "function": {"name": "now", "arguments": {"zone": "é"}}}
    assert with_readable_calls(ASKED, TOOL_FORMATS["deepseek"]) == ASKED
    assert CALL["function"] == {"name": "now", "arguments": '{"zone": "é"}'}  # the caller's is untouched


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ('{"city": "Paris", "unit":', {"city": "Paris"}),
        ("{", {}),
        ("", {}),
        ("[]", {}),
        ('"x"', {}),
        ("[" * 100_000, {}),
    ],
    ids=lambda value: str(value)[:10],
)
def test_a_call_that_was_cut_is_what_there_is_of_it(text: str, read: dict[str, Any]) -> None:
    """Its client sends it back as the answer had it."""
    message = {"role": "assistant", "tool_calls": [{"function": {"name": "now", "arguments": text}}]}
    ((found,), _) = for_template([message], (), None, "{{ tools }}")
    assert found["tool_calls"][0]["function"]["arguments"] == read


@pytest.mark.parametrize("arguments", [7, None, ["x"]])
def test_calls_that_no_model_made(arguments: object) -> None:
    message = {"role": "assistant", "tool_calls": [{"function": {"name": "now", "arguments": arguments}}]}
    for template in ("{{ tools }}", "{{ messages }}"):
        with pytest.raises(InvalidRequestError) as refusal:
            for_template([message], (), None, template)
        assert refusal.value.field == "messages[0].tool_calls"
    with pytest.raises(InvalidRequestError):
        with_readable_calls([{"role": "assistant", "tool_calls": ["now"]}], None)
