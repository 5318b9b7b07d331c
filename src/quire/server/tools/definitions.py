"""The tools a request offers, checked, and which of them it wants called."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from quire.errors import InvalidRequestError

MAX_TOOLS = 128
MAX_DESCRIPTION_CHARS = 16_384
MAX_SCHEMA_CHARS = 65_536
MAX_ALL_SCHEMAS_CHARS = 262_144
MAX_SCHEMA_DEPTH = 32

MAX_NAME_LENGTH = 128
"""Anthropic's, which clients that name tools after their servers need; OpenAI's is 64."""
_NAME = re.compile(rf"[a-zA-Z0-9_-]{{1,{MAX_NAME_LENGTH}}}")


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    description: str
    parameters: dict[str, Any]
    """JSON schema of an object: the arguments. "properties" and "required", where given, are of the right types."""
    strict: bool = False
    """A keyword of the schema that cannot be enforced is an error, not ignored."""

    def as_template_input(self) -> dict[str, Any]:
        """The shape that chat templates read."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ToolChoice:
    mode: Literal["none", "auto", "required", "named"]
    name: str | None = None
    """The function to call, for "named"."""
    allowed: frozenset[str] | None = None
    """Names of the only tools that may be called, where not all may."""

    @property
    def forces_call(self) -> bool:
        return self.mode in ("required", "named")


NO_TOOLS = ToolChoice("none")


def parse_tools(items: Sequence[Mapping[str, Any]] | None, *, functions_only: bool = False) -> tuple[Tool, ...]:
    """The tools of a request, in the shape of chat completions, of responses or of Anthropic's messages. `functions_only`: those of other
    types are left out, not refused.

    Raises InvalidRequestError naming the tool and the rule.
    """
    items = items or ()
    if len(items) > MAX_TOOLS:
        raise InvalidRequestError(
            f"The request offers {len(items)} tools; at most {MAX_TOOLS} are taken, leave some out.", field="tools"
        )
    tools: dict[str, Tool] = {}
    for index, item in enumerate(items):
        if functions_only and item.get("type", "function") != "function":
            continue
        tool = _parse_tool(item, f"tools[{index}]")
        if tool.name in tools:
            raise InvalidRequestError(
                f"Two tools are named {tool.name!r}; give each its own name.", field=f"tools[{index}]", value=tool.name
            )
        tools[tool.name] = tool
    num_chars = sum(len(json.dumps(tool.parameters)) for tool in tools.values())
    if num_chars > MAX_ALL_SCHEMAS_CHARS:
        raise InvalidRequestError(
            f"The tools' parameters are {num_chars} characters of JSON together; at most {MAX_ALL_SCHEMAS_CHARS} are"
            " taken, leave some tools out.",
            field="tools",
        )
    return tuple(tools.values())


def _parse_tool(item: Mapping[str, Any], field: str) -> Tool:
    is_anthropic = "input_schema" in item
    kind = item.get("type", "custom" if is_anthropic else None)
    if kind != ("custom" if is_anthropic else "function"):
        raise InvalidRequestError(
            f'{field} has the type {kind!r:.100}; only tools of the type "function" are supported.',
            field=f"{field}.type",
            value=kind,
        )
    function = item.get("function", item)
    if not isinstance(function, Mapping):
        raise InvalidRequestError(f"{field}.function must be an object, got {function!r:.100}.", field=field)
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidRequestError(
            f"{field} has the name {name!r:.100}; a name is 1 to {MAX_NAME_LENGTH} letters, digits, underscores and hyphens.",
            field=f"{field}.name",
            value=name,
        )
    description = function.get("description") or ""
    if not isinstance(description, str) or len(description) > MAX_DESCRIPTION_CHARS:
        raise InvalidRequestError(
            f"The description of the tool {name!r} must be a text of at most {MAX_DESCRIPTION_CHARS} characters.",
            field=f"{field}.description",
        )
    schema = _parse_schema(function.get("input_schema" if is_anthropic else "parameters"), name, field)
    return Tool(name, description, schema, strict=function.get("strict") is True)


def _parse_schema(schema: object, name: str, field: str) -> dict[str, Any]:
    field = f"{field}.parameters"
    if schema is None:
        return {"type": "object", "properties": {}}
    if not isinstance(schema, Mapping):
        raise InvalidRequestError(
            f"The parameters of the tool {name!r} must be a JSON schema, an object, got {schema!r:.100}.", field=field
        )
    if schema.get("type", "object") != "object":
        raise InvalidRequestError(
            f"The parameters of the tool {name!r} have the type {schema['type']!r:.100}; arguments are always an"
            ' object: set it to "object".',
            field=f"{field}.type",
            value=schema["type"],
        )
    depth = _depth(schema)
    if depth > MAX_SCHEMA_DEPTH:
        raise InvalidRequestError(
            f"The parameters of the tool {name!r} are nested more than {MAX_SCHEMA_DEPTH} levels deep; move inner"
            " schemas to $defs.",
            field=field,
        )
    num_chars = len(json.dumps(schema))
    if num_chars > MAX_SCHEMA_CHARS:
        raise InvalidRequestError(
            f"The parameters of the tool {name!r} are {num_chars} characters of JSON; at most {MAX_SCHEMA_CHARS} are"
            " taken, shorten them.",
            field=field,
        )
    required = schema.get("required", [])
    are_names = isinstance(required, list) and all(isinstance(name, str) for name in required)
    if not isinstance(schema.get("properties", {}), Mapping) or not are_names:
        raise InvalidRequestError(
            f'In the parameters of the tool {name!r}, "properties" must be an object and "required" a list of names.',
            field=field,
        )
    return {"type": "object", **schema}


def _depth(schema: Mapping[str, Any]) -> int:
    """Levels of nesting, counted up to one over the limit, without recursion."""
    level: list[Any] = [schema]
    for depth in range(1, MAX_SCHEMA_DEPTH + 1):
        level = [
            inner
            for value in level
            for inner in (value.values() if isinstance(value, Mapping) else value)
            if isinstance(inner, Mapping | list)
        ]
        if not level:
            return depth
    return MAX_SCHEMA_DEPTH + 1


def parse_tool_choice(value: object, tools: Sequence[Tool]) -> ToolChoice:
    """What `tool_choice` asks for, in OpenAI's shapes or Anthropic's. Raises InvalidRequestError."""
    choice = _read_choice(value, "auto" if tools else "none")
    if choice is None:
        raise InvalidRequestError(
            f'tool_choice is {value!r:.100}; it must be "none", "auto", "required",'
            ' {"type": "function", "function": {"name": ...}}, or {"type": "allowed_tools", ...} with functions in it.',
            field="tool_choice",
            value=value,
        )
    if choice.forces_call and not tools:
        raise InvalidRequestError(
            "tool_choice asks for a call, but the request offers no tools; add tools or leave tool_choice out.",
            field="tool_choice",
            value=value,
        )
    names = choice.allowed or frozenset() if choice.name is None else {choice.name}
    unknown = sorted(name for name in names if name not in {tool.name for tool in tools})
    if unknown:
        raise InvalidRequestError(
            f"tool_choice names {unknown[0]!r:.100}, which is none of the request's tools"
            f" ({', '.join(tool.name for tool in tools)[:500]}).",
            field="tool_choice",
            value=value,
        )
    return choice if tools else NO_TOOLS


def _read_choice(value: object, default: Literal["auto", "none"]) -> ToolChoice | None:
    match value:
        case None:
            return ToolChoice(default)
        case "none" | {"type": "none"}:
            return ToolChoice("none")
        case "auto" | {"type": "auto"}:
            return ToolChoice("auto")
        case "required" | {"type": "any"}:
            return ToolChoice("required")
        case {"type": "function", "function": {"name": str(name)}} | {"type": "function" | "tool", "name": str(name)}:
            return ToolChoice("named", name)
        case {"type": "allowed_tools", "allowed_tools": inner} | ({"type": "allowed_tools"} as inner):
            return _read_allowed(inner)
    return None


def _read_allowed(value: object) -> ToolChoice | None:
    """`{"mode": "auto" or "required", "tools": [...]}`, each as a choice of one function."""
    match value:
        case {"mode": "auto" | "required" as mode, "tools": [*items]}:
            choices = [_read_choice(item, "none") for item in items]
            names = frozenset(choice.name for choice in choices if choice is not None and choice.name is not None)
            return ToolChoice(mode, allowed=names) if len(names) == len(items) > 0 else None
    return None
