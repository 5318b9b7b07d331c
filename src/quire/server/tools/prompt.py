"""Tools and earlier calls in the form that a chat template takes them in."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import from_json

from quire.errors import InvalidRequestError
from quire.server.tools.definitions import Tool
from quire.server.tools.registry import FALLBACK_FORMAT, takes_tools
from quire.server.tools.tool_format import ToolFormat

Message = Mapping[str, Any]

_INSTRUCTIONS = """You can call these functions:
<tools>
{tools}
</tools>
To call one, write its name and arguments exactly in this form, and nothing after it:
{example}
If no function helps, answer in plain text."""


def for_template(
    messages: Sequence[Message], tools: Sequence[Tool], tool_format: ToolFormat | None, chat_template: str | None
) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None]:
    """What a chat template gets as its `messages` and its `tools`. Raises InvalidRequestError for bad earlier calls.

    A template that ignores tools gets them as part of the system text.
    """
    taught = tool_format is not None and chat_template is not None and tool_format.is_taught_by(chat_template)
    if taught or takes_tools(chat_template):
        messages = with_readable_calls(messages, tool_format)
    else:
        messages = with_calls_as_text(messages, tool_format or FALLBACK_FORMAT)
    if takes_tools(chat_template):
        return messages, [tool.as_template_input() for tool in tools] or None
    return with_tools_in_prompt(messages, tools, tool_format or FALLBACK_FORMAT), None


def with_tools_in_prompt(
    messages: Sequence[Message], tools: Sequence[Tool], tool_format: ToolFormat = FALLBACK_FORMAT
) -> list[dict[str, Any]]:
    """The messages with a system text that lists the tools and shows how to call them."""
    plain = [dict(message) for message in messages]
    if not tools:
        return plain
    instructions = _INSTRUCTIONS.format(
        tools="\n".join(json.dumps(tool.as_template_input()["function"], ensure_ascii=False) for tool in tools),
        example=tool_format.layout.write([("function_name", {"argument_name": "value"})]),
    )
    if plain and plain[0].get("role") == "system":
        first = {**plain[0], "content": f"{_text_of(plain[0].get('content'))}\n\n{instructions}"}
        return [first, *plain[1:]]
    return [{"role": "system", "content": instructions}, *plain]


def with_calls_as_text(messages: Sequence[Message], tool_format: ToolFormat) -> list[dict[str, Any]]:
    """For a template that knows nothing of tools: earlier calls become the text the model would write for them, the
    results that follow one message of the user. Raises InvalidRequestError."""
    plain: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        calls = message.get("tool_calls")
        if message.get("role") == "tool":
            result = f"<tool_response>\n{_text_of(message.get('content'))}\n</tool_response>"
            if index and messages[index - 1].get("role") == "tool":
                plain[-1]["content"] += f"\n{result}"
            else:
                plain.append({"role": "user", "content": result})
        elif isinstance(calls, list) and calls:
            text = tool_format.layout.write([_name_and_arguments(call, index) for call in calls])
            content = "\n".join(part for part in (_text_of(message.get("content")), text) if part)
            rest = {key: value for key, value in message.items() if key != "tool_calls"}
            plain.append({**rest, "content": content})
        else:
            plain.append(dict(message))
    return plain


def with_readable_calls(messages: Sequence[Message], tool_format: ToolFormat | None) -> list[dict[str, Any]]:
    """For a template that knows tools: the arguments of earlier calls, which clients send as a JSON string, become
    the object that most templates expect. Raises InvalidRequestError for what is no call."""
    if tool_format is not None and tool_format.arguments_as_text:
        return [dict(message) for message in messages]
    return [_with_arguments_read(message, index) for index, message in enumerate(messages)]


def _with_arguments_read(message: Message, index: int) -> dict[str, Any]:
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return dict(message)
    read = []
    for call in calls:
        name, arguments = _name_and_arguments(call, index)
        read.append({**call, "function": {"name": name, "arguments": arguments}})
    return {**message, "tool_calls": read}


def _name_and_arguments(call: object, index: int) -> tuple[str, dict[str, Any]]:
    field = f"messages[{index}].tool_calls"
    match call:
        case {"function": {"name": str(name), "arguments": str(text)}}:
            arguments = read_arguments(text)
        case {"function": {"name": str(name), "arguments": arguments}}:
            pass
        case _:
            raise InvalidRequestError(
                f'{field} must hold {{"function": {{"name": ..., "arguments": ...}}}}, got {call!r:.200}.', field=field
            )
    if not isinstance(arguments, dict):
        raise InvalidRequestError(
            f"The arguments of the call of {name!r:.100} in {field} are no JSON object, nor its text; send them as the"
            " model's answer had them.",
            field=field,
        )
    return name, arguments


def read_arguments(text: str) -> dict[str, Any]:
    """A call's; of an object that was cut short, as by the end of an answer, what there is of it. Its client could not mend it, and
    Anthropic's read it so from the deltas."""
    try:
        arguments = from_json(text, allow_partial=True)
    except ValueError:
        return {}
    return arguments if isinstance(arguments, dict) else {}


def _text_of(content: object) -> str:
    """A message's content, which is null beside calls."""
    return content if isinstance(content, str) else ""
