"""A grammar under which the model can write nothing but calls of the request's tools.

The text around names and arguments is the model's own format, letter for letter; the arguments follow the tool's
schema. The grammar is in llguidance's dialect of Lark, with the schemas inline.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from quire.errors import InvalidRequestError
from quire.server.reasoning.registry import ReasoningStyle
from quire.server.tools.definitions import Tool, ToolChoice
from quire.server.tools.tool_format import CallLayout, ToolFormat

MAX_CALLS = 32
"""In one answer that must call: a weak model would go on calling until its last token."""

_ROOT_DEFINITIONS = ("$defs", "definitions")
_PLAIN_OBJECT_KEYS = frozenset(
    {"type", "properties", "required", "title", "description", "$schema", *_ROOT_DEFINITIONS}
)
"""A schema with no other keys says which arguments there are, and leaves open whether there may be more."""
_OTHER_REFERENCE = re.compile(r'"\$ref": "(?!#/(\$defs|definitions)/)')


def tool_constraint(
    tools: Sequence[Tool],
    choice: ToolChoice,
    tool_format: ToolFormat | None,
    *,
    parallel: bool = True,
    reasoning: ReasoningStyle | None = None,
    starts_inside_reasoning: bool = False,
    token_ids: Mapping[str, int] | None = None,
    otherwise: Mapping[str, Any] | None = None,
) -> str | None:
    """The grammar that makes the model call what `choice` asks for; None where it asks for nothing.

    "required" is one call of any of the tools or, where `parallel` and the format have them, several; "named" is one
    call. "auto" is calls or an answer that fits the JSON schema `otherwise`, if there is one, and the format's calls cannot be taken
    for JSON. `reasoning` may come first. `token_ids` are the texts that are single tokens in the model's vocabulary: those
    are not spelled, but taken whole, as the model is used to. Raises InvalidRequestError if the model has no format of calls.
    """
    may_call = choice.mode == "auto" and bool(tools) and tool_format is not None and not tool_format.bare_opener
    if not choice.forces_call and (otherwise is None or not may_call):
        return None
    if tool_format is None:
        raise InvalidRequestError(
            f"tool_choice {choice.mode!r} needs to know how the model writes calls, which its chat template does not"
            ' show; start the server with --tool-call-parser, or set tool_choice to "auto".',
            field="tool_choice",
            value=choice.name or choice.mode,
        )
    wanted = [tool for tool in tools if choice.name in (None, tool.name)]
    layout = tool_format.layout
    text = _Literals(token_ids or {})
    rules = [f"call: {' | '.join(f'call_{index}' for index in range(len(wanted)))}"]
    for index, tool in enumerate(wanted):
        rules += _call_rules(tool, layout, text, f"_{index}")
    calls = "call"
    if parallel and choice.mode != "named" and layout.between is not None:
        calls = f"call ({text.sequence(layout.between)} call){{0,{MAX_CALLS - 1}}}"
    start = f"{text.sequence(layout.before)} {calls} {text.sequence(layout.after)}"
    if not choice.forces_call:
        start = f"({start} | answer)"
        rules.append(f"answer: {_json(otherwise or {}, lenient=False)}")
    if reasoning is not None:
        start = f"{_reasoning_prefix(reasoning, starts_inside_reasoning, text)} {start}"
        rules.append(_reasoning_body(reasoning, text))
    return "\n".join([f"start: {start}", *rules, ""])


class _Literals:
    """Writes texts as Lark, single tokens as tokens."""

    def __init__(self, token_ids: Mapping[str, int]) -> None:
        self.token_ids = token_ids
        self._tokens = re.compile("|".join(re.escape(text) for text in token_ids) or r"(?!)")

    def sequence(self, text: str) -> str:
        """The symbols that stand for the text one after the other."""
        symbols: list[str] = []
        at = 0
        for match in self._tokens.finditer(text):
            symbols += [_quote(text[at : match.start()]), f"<[{self.token_ids[match.group()]}]>"]
            at = match.end()
        return " ".join(symbol for symbol in [*symbols, _quote(text[at:])] if symbol)


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""


def _reasoning_prefix(style: ReasoningStyle, starts_inside: bool, text: _Literals) -> str:
    opening = f"({text.sequence(style.start)} reasoning)?"
    return "reasoning /\\s{0,4}/" if starts_inside else f"{opening} /\\s{{0,4}}/"


def _reasoning_body(style: ReasoningStyle, text: _Literals) -> str:
    if style.end in text.token_ids:
        return f"reasoning: /(?s:.*)/ {text.sequence(style.end)}"
    return f"reasoning[suffix={_quote(style.end)}]: /(?s:.*)/"


def _call_rules(tool: Tool, layout: CallLayout, text: _Literals, suffix: str) -> list[str]:
    """The rules call<suffix> and below it."""
    head = text.sequence(f"{layout.before_name}{tool.name}{layout.before_arguments}")
    tail = text.sequence(layout.after_arguments)
    if layout.keyword_arguments and _has_plain_keywords(tool.parameters):
        return [f"call{suffix}: {head} keywords{suffix}_0 {tail}", *_keyword_rules(tool, suffix)]
    unpacking = '"**" ' if layout.keyword_arguments else ""
    return [
        f"call{suffix}: {head} {unpacking}arguments{suffix} {tail}",
        f"arguments{suffix}: {_json(_closed(tool.parameters), lenient=not tool.strict)}",
    ]


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema without the arguments it does not name. Functions take none, but weak models make some up."""
    names_arguments = "properties" in schema and set(schema) <= _PLAIN_OBJECT_KEYS
    return {**schema, "additionalProperties": False} if names_arguments else schema


def _json(schema: Mapping[str, Any], *, lenient: bool) -> str:
    """The schema inline. At most one space follows a comma or colon: in free white space weak models get lost."""
    options = {
        "whitespace_flexible": False,
        "item_separator": ", ?",
        "key_separator": ": ?",
        "lenient": lenient,
    }
    return f"%json {json.dumps({**schema, 'x-guidance': options})}"


def _has_plain_keywords(schema: Mapping[str, Any]) -> bool:
    """Whether the schema says no more than names, types and which are required, so that it fits keyword arguments,
    and its properties can stand alone with the definitions."""
    properties = schema.get("properties", {})
    return (
        "properties" in schema
        and set(schema) - {"additionalProperties"} <= _PLAIN_OBJECT_KEYS
        and all(name.isidentifier() and name.isascii() for name in properties)
        and all(isinstance(inner, Mapping) for inner in properties.values())
        and set(schema.get("required", [])) <= set(properties)
        and not _OTHER_REFERENCE.search(json.dumps(schema))
    )


def _keyword_rules(tool: Tool, suffix: str) -> list[str]:
    """keywords<suffix>_0 is all arguments, in the schema's order, the optional ones present or not.

    Rule k stands for the arguments from the k-th on with none before, more<k> for those with some before.
    """
    properties = list(tool.parameters["properties"].items())
    required = set(tool.parameters.get("required", []))
    shared = {key: tool.parameters[key] for key in _ROOT_DEFINITIONS if key in tool.parameters}
    rules = [f'keywords{suffix}_{len(properties)}: ""', f'more{suffix}_{len(properties)}: ""']
    for index, (name, schema) in enumerate(properties):
        argument, after = f"argument{suffix}_{index}", f"{suffix}_{index + 1}"
        first, later = f"{argument} more{after}", f'", " {argument} more{after}'
        if name not in required:
            first, later = f"{first} | keywords{after}", f"{later} | more{after}"
        rules += [
            f"keywords{suffix}_{index}: {first}",
            f"more{suffix}_{index}: {later}",
            f"{argument}: {_quote(name + '=')} value{suffix}_{index}",
            f"value{suffix}_{index}: {_json({**shared, **schema}, lenient=not tool.strict)}",
        ]
    return rules
